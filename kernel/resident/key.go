package main

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/mod/modfile"
)

// key identifies what is built of the declarations that run: these, as they are written, the modules, and the flags. It
// returns false if it cannot tell.
func (s source) key(folder string) (string, bool) {
	if _, ok := s["main"]; !ok {
		return "", false
	}
	h := sha256.New()
	for _, name := range slices.Sorted(maps.Keys(s)) {
		fmt.Fprintf(h, "%s\n%s\n", name, s[name].full)
	}
	folders, ok := local(folder, h)
	if !ok {
		return "", false
	}
	fmt.Fprintln(h, os.Getenv("GOFLAGS"))
	for _, path := range folders {
		if fingerprint(h, path) != nil {
			return "", false
		}
	}
	return hex.EncodeToString(h.Sum(nil)), true
}

// local returns the folders with modules that a program uses, but for its own; others are in Go's module cache and
// never change. It also writes the files that name them.
func local(folder string, to io.Writer) (folders []string, ok bool) {
	var files [2][]byte
	for i, name := range []string{"go.mod", "go.work"} {
		text, err := os.ReadFile(filepath.Join(folder, name))
		if err != nil {
			return nil, false
		}
		files[i] = text
		fmt.Fprintf(to, "%s\n", text)
	}
	mod, err := modfile.Parse("go.mod", files[0], nil)
	if err != nil {
		return nil, false
	}
	work, err := modfile.ParseWork("go.work", files[1], nil)
	if err != nil {
		return nil, false
	}
	add := func(path string) {
		if !filepath.IsAbs(path) {
			path = filepath.Join(folder, path)
		}
		if path = filepath.Clean(path); path != folder && !slices.Contains(folders, path) {
			folders = append(folders, path)
		}
	}
	for _, use := range work.Use {
		add(use.Path)
	}
	for _, replace := range slices.Concat(mod.Replace, work.Replace) {
		if replace.New.Version == "" {
			add(replace.New.Path)
		}
	}
	return folders, true
}

// fingerprint adds the names, sizes and times of a module's files.
func fingerprint(to io.Writer, root string) error {
	return filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if entry.IsDir() {
			if name := entry.Name(); path != root && (strings.HasPrefix(name, ".") || name == "notebooks") {
				return fs.SkipDir
			}
			return nil
		}
		info, err := entry.Info()
		if err == nil {
			fmt.Fprintln(to, path, info.Size(), info.ModTime().UnixNano())
		}
		return err
	})
}
