package kernel_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/shardbook/shardbook/internal/kerneltest"
	"github.com/shardbook/shardbook/internal/must"
	"github.com/shardbook/shardbook/internal/systest"
	"github.com/shardbook/shardbook/kernel"
)

func TestSetupAgainDoesNothing(t *testing.T) {
	k := kerneltest.Ready(t)
	err := k.Setup(t.Context(), func(part string, _, _ int, what string) {
		t.Errorf("the second set-up installs %s: %s", part, what)
	})
	must.Do(t, err)
}

func TestNewFindsTheProject(t *testing.T) {
	here := must.Get(kernel.New(".", ""))(t)
	if _, err := os.Stat(filepath.Join(here.Root, "kernel", "kernel_test.go")); err != nil {
		t.Errorf("root %q: %v", here.Root, err)
	}
	away := t.TempDir()
	if _, err := kernel.New(away, ""); err == nil || !strings.Contains(err.Error(), kernel.EnvRoot) {
		t.Errorf("outside of the project: %v", err)
	}
	t.Setenv(kernel.EnvRoot, here.Root)
	if k, err := kernel.New(away, ""); err != nil || k.Root != here.Root {
		t.Errorf("with %s: %+v, %v", kernel.EnvRoot, k, err)
	}
	t.Setenv(kernel.EnvRoot, away)
	if _, err := kernel.New(away, ""); err == nil || !strings.Contains(err.Error(), away) {
		t.Errorf("with %s elsewhere: %v", kernel.EnvRoot, err)
	}
}

// notebook writes a notebook of code cells and returns its path.
func notebook(t testing.TB, cells ...string) string {
	t.Helper()
	var list []map[string]any
	for i, source := range cells {
		list = append(list, map[string]any{"cell_type": "code", "id": fmt.Sprint("cell-", i), "source": source,
			"metadata": map[string]any{}, "outputs": []any{}, "execution_count": nil})
	}
	text := must.Get(json.Marshal(map[string]any{
		"nbformat": 4, "nbformat_minor": 5, "cells": list,
		"metadata": map[string]any{"kernelspec": map[string]any{"name": kernel.Name, "display_name": "Go", "language": "go"}},
	}))(t)
	path := filepath.Join(t.TempDir(), "test.ipynb")
	must.Do(t, os.WriteFile(path, text, 0o644))
	return path
}

func TestHeadlessFailures(t *testing.T) {
	k := kerneltest.Ready(t)
	good := "%%\nfmt.Println(\"fine\")"
	type failing struct {
		name  string
		cells []string
		run   kernel.Run
		cell  int
		why   string
	}
	for _, test := range systest.OfFull(t, 4, []failing{
		{name: "a panic", cells: []string{good, "%%\npanic(\"broken on purpose\")"}, cell: 2, why: "broken on purpose"},
		{name: "an exit status", cells: []string{"%%\nos.Exit(3)"}, cell: 1, why: "exit status 3"},
		{name: "a compile error", cells: []string{good, "%%\nundefined(1)"}, cell: 2, why: "undefined"},
		{name: "standard error", cells: []string{good, good, "%%\nfmt.Fprintln(os.Stderr, \"a stray word\")"}, cell: 3,
			why: "a stray word"},
		{name: "a failing shell line", cells: []string{"!true", "!exit 4"}, cell: 2, why: "exit status 4"},
		{name: "a silent failing command", cells: []string{"!false"}, cell: 1, why: "exit status 1"},
		{name: "much on standard error", cell: 1, why: "a stray line",
			cells: []string{"%%\nos.Stderr.WriteString(strings.Repeat(\"a stray line\\n\", 1<<20))"}},
		{name: "a cell that takes too long", cells: []string{"%%\ntime.Sleep(time.Hour)"},
			run: kernel.Run{Timeout: 3 * time.Second}, cell: 1, why: "did not end within 3 s"},
	}) {
		t.Run(test.name, func(t *testing.T) {
			test.run.Notebook = notebook(t, test.cells...)
			test.run.Ipynb = filepath.Join(t.TempDir(), "out.ipynb")
			err := k.Headless(t.Context(), test.run)
			var failed *kernel.CellError
			if !errors.As(err, &failed) {
				t.Fatalf("error %v, want a CellError", err)
			}
			if failed.Cell != test.cell || failed.Notebook != "test.ipynb" || !strings.Contains(failed.Why, test.why) {
				t.Errorf("error %q, want one of cell %d that says %q", err, test.cell, test.why)
			}
			if _, err := os.Stat(test.run.Ipynb); err != nil {
				t.Errorf("the outputs up to the failure are not written: %v", err)
			}
		})
	}
}

func TestHeadlessRefuses(t *testing.T) {
	k := kerneltest.Ready(t)
	path := notebook(t, "%%\nfmt.Println(1)")
	broken := filepath.Join(t.TempDir(), "broken.ipynb")
	must.Do(t, os.WriteFile(broken, []byte("{"), 0o644))
	for name, run := range map[string]kernel.Run{
		"overwrite":         {Notebook: path, Ipynb: path},
		"want more than 0":  {Notebook: path, Timeout: -time.Second},
		"no such file":      {Notebook: filepath.Join(t.TempDir(), "none.ipynb")},
		"broken.ipynb":      {Notebook: broken},
		"nowhere/out.ipynb": {Notebook: path, Ipynb: filepath.Join(t.TempDir(), "nowhere", "out.ipynb")},
	} {
		err := k.Headless(t.Context(), run)
		if err == nil || !strings.Contains(err.Error(), name) || strings.Contains(err.Error(), "\n") {
			t.Errorf("error %v, want one sentence that says %q", err, name)
		}
	}
}

func TestHeadlessKeepsAndForgets(t *testing.T) {
	k := kerneltest.Ready(t)
	const imports = "import \"github.com/shardbook/shardbook/lib/notebook\"\n"
	keeps := notebook(t, imports+"%%\nnotebook.Check(notebook.Keep(\"answer\", notebook.Param(\"answer\", 42)))",
		"%%\nif got := notebook.Must(notebook.Kept[int](\"answer\")); got != 43 {\n\tpanic(got)\n}")
	// The parameter comes from outside, the value from the cell before.
	err := k.Headless(t.Context(), kernel.Run{Notebook: keeps, Env: []string{`SHARDBOOK_PARAMS={"answer":"43"}`}})
	must.Do(t, err)
	reads := notebook(t, imports+"%%\nnotebook.Must(notebook.Kept[int](\"answer\"))")
	err = k.Headless(t.Context(), kernel.Run{Notebook: reads})
	must.Refuse(t, "a new kernel sees what another kept", err, "kept so far: nothing")
}

func TestHeadlessStartsNoLanguageServer(t *testing.T) {
	k := kerneltest.Ready(t)
	gopls, err := k.Command(t.Context(), "gopls")
	if err != nil || !strings.HasPrefix(gopls.Path, k.Cache) {
		t.Fatalf("JupyterLab's kernels have the gopls %v, %v", gopls, err)
	}
	// Whoever has one on the PATH gets that one.
	path := notebook(t, fmt.Sprintf("!case \"$(command -v gopls)\" in '%s'/*) exit 1;; esac", k.Cache))
	if err := k.Headless(t.Context(), kernel.Run{Notebook: path}); err != nil {
		t.Errorf("a headless kernel finds the gopls of the tools: %v", err)
	}
}

func TestHeadlessStops(t *testing.T) {
	k := kerneltest.Ready(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	pid := filepath.Join(t.TempDir(), "pid")
	path := notebook(t, fmt.Sprintf("%%%%\nos.WriteFile(%q, []byte(fmt.Sprint(os.Getpid())), 0o600)\n"+
		"time.Sleep(time.Hour)", pid))
	done := make(chan error, 1)
	go func() { done <- k.Headless(ctx, kernel.Run{Notebook: path}) }()
	var cell string
	for cell == "" {
		select {
		case err := <-done:
			t.Fatalf("the run ended before the cell began: %v", err)
		case <-time.After(50 * time.Millisecond):
		}
		text, _ := os.ReadFile(pid)
		cell = string(text)
	}
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("a cancelled run returned %v", err)
	}
	for range 200 { // the cell is killed by its kernel, which is asked to stop first
		if _, err := os.Stat("/proc/" + cell); errors.Is(err, os.ErrNotExist) {
			return
		}
		time.Sleep(50 * time.Millisecond)
	}
	t.Errorf("the cell's process %s lives on", cell)
}

func TestFindNotebooks(t *testing.T) {
	k, err := kernel.New(".", "")
	must.Do(t, err)
	all, err := k.FindNotebooks(nil)
	if err != nil || len(all) < 2 || filepath.Base(all[0]) != "00-devices.ipynb" {
		t.Fatalf("all notebooks: %q, %v", all, err)
	}
	for _, name := range []string{"00-devices", "00-devices.ipynb", "00"} {
		if got, err := k.FindNotebooks([]string{name}); err != nil || len(got) != 1 || got[0] != all[0] {
			t.Errorf("%q: %q, %v", name, got, err)
		}
	}
	_, err = k.FindNotebooks([]string{"99-nothing"})
	if err == nil || !strings.Contains(err.Error(), "99-nothing") || !strings.Contains(err.Error(), "00-devices") {
		t.Errorf("an unknown name: %v", err)
	}
}

// Whoever is root hears that JupyterLab is told to run as root, unless he has told it so himself; nobody else does.
func TestLabAsRoot(t *testing.T) {
	k := kerneltest.Ready(t)
	root := os.Geteuid() == 0
	for _, c := range []struct {
		args  []string
		warns bool
		told  int // how often JupyterLab is told
	}{{nil, root, map[bool]int{true: 1}[root]}, {[]string{"--allow-root"}, false, 1}} {
		lab := kernel.Lab{Args: c.args}
		cmd := must.Get(k.LabCommand(t.Context(), lab))(t)
		warning := lab.Warning()
		if told := strings.Count(strings.Join(cmd.Args, " "),
			"--allow-root"); told != c.told || (warning != "") != c.warns {
			t.Errorf("with %q and root %v: %q, warning %q", c.args, root, cmd.Args, warning)
		}
		if c.warns && (!strings.Contains(warning, "--allow-root") || strings.Contains(warning, "\n")) {
			t.Errorf("warning %q, want a line that names --allow-root", warning)
		}
	}
}
