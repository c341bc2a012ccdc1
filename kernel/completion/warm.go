package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// warmUp fills gopls's cache with what a notebook may import: packages of the checkout, the first of the modules. To
// type-check that takes half a minute and 500 MB. With the cache a new gopls answers after 2 s.
func warmUp(ctx context.Context, modules []string, s settings) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Minute)
	defer cancel()
	workspace := []string{"work", "init", "."}
	for _, module := range modules {
		path, err := filepath.Abs(module)
		if err != nil {
			return err
		}
		workspace = append(workspace, path)
	}
	folder, err := os.MkdirTemp("", "shardbook-completion-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(folder)
	// As in a kernel: a module in a temporary folder, and a workspace of it, the checkout, and what replaces others.
	for _, args := range [][]string{{"mod", "init", "notebook"}, workspace} {
		if _, err := output(ctx, folder, "go", args...); err != nil {
			return err
		}
	}
	packages, err := output(ctx, folder, "go", "list", "github.com/shardbook/shardbook/lib/...")
	if err != nil {
		return err
	}
	if packages == "" {
		return fmt.Errorf("%s has no libraries: give warm-up a checkout of shardbook", modules[0])
	}
	text := "package main\n\nimport (\n"
	for name := range strings.Lines(packages) {
		if !strings.Contains(name, "/internal/") {
			text += fmt.Sprintf("\t_ %q\n", strings.TrimSpace(name))
		}
	}
	text += ")\n\nfunc main() {}\n"
	path := filepath.Join(folder, "main.go")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		return err
	}
	return typeCheck(ctx, s, folder, path, text)
}

// typeCheck has a gopls type-check a program of one file, by a question about its last line.
func typeCheck(ctx context.Context, s settings, folder, path, text string) error {
	initialize := request(json.RawMessage("1"), "initialize", object{
		"capabilities":          object{},
		"workspaceFolders":      []object{{"uri": uri(folder), "name": filepath.Base(folder)}},
		"initializationOptions": s.options(),
	})
	gopls, err := start(s, message{ID: json.RawMessage("1"), text: initialize})
	if err != nil {
		return err
	}
	defer gopls.stop()
	file := object{"uri": uri(path), "languageId": "go", "version": 1, "text": text}
	gopls.send(notification(didOpen, object{"textDocument": file}))
	gopls.send(request(json.RawMessage("2"), "textDocument/hover", object{
		"textDocument": object{"uri": uri(path)},
		"position":     object{"line": strings.Count(text, "\n") - 1, "character": len("func ")},
	}))
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case m, ok := <-gopls.messages:
			if !ok {
				return fmt.Errorf("gopls ended: %s", gopls.end)
			}
			if m.Method == "" && string(m.ID) == "2" {
				if m.Error != nil {
					return fmt.Errorf("gopls cannot type-check the packages of the checkout: %s", m.Error)
				}
				return nil
			}
		}
	}
}

// uri is the name of a file in the protocol.
func uri(path string) string { return (&url.URL{Scheme: "file", Path: path}).String() }

// output runs a command in a folder and returns what it prints.
func output(ctx context.Context, folder, name string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = folder
	text, err := cmd.Output()
	var failed *exec.ExitError
	if errors.As(err, &failed) {
		err = fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, failed.Stderr)
	}
	return string(text), err
}
