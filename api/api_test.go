// Package api has a record of what the libraries export, a file for each release, so that a change of it is seen in
// review. After a wanted change, go test ./api -update renews the newest record; before a release with another
// interface, copy it under the new version.
package api

import (
	"flag"
	"go/importer"
	"go/token"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/shardbook/shardbook/internal/must"
	"golang.org/x/mod/semver"
)

var update = flag.Bool("update", false, "write the newest record anew")

// newest is the file of the highest version.
func newest(t *testing.T) string {
	t.Helper()
	records, err := filepath.Glob("v*.txt")
	if err != nil || len(records) == 0 {
		t.Fatalf("no record such as v0.1.0.txt: %v", err)
	}
	version := func(file string) string { return strings.TrimSuffix(file, ".txt") }
	return slices.MaxFunc(records, func(a, b string) int { return semver.Compare(version(a), version(b)) })
}

// exported describes all packages below lib, from what the compiler says of them, which go test ./... has in its cache.
func exported(t *testing.T) []string {
	t.Helper()
	module := list(t, "-m")[0] + "/"
	compiled := map[string]string{} // path of a package → its export data
	for _, line := range list(t, "-export", "-deps", "-f", "{{.ImportPath}} {{.Export}}", "../lib/...") {
		path, file, _ := strings.Cut(line, " ")
		compiled[path] = file
	}
	open := func(path string) (io.ReadCloser, error) { return os.Open(compiled[path]) }
	from := importer.ForCompiler(token.NewFileSet(), "gc", open)
	var lines []string
	for _, path := range list(t, "../lib/...") {
		// lib/resident is between processes of one build, and not for those who import the libraries.
		if strings.Contains(path, "/internal/") || strings.HasSuffix(path, "/lib/resident") {
			continue
		}
		pkg := must.Get(from.Import(path))(t)
		lines = append(lines, describe(strings.TrimPrefix(path, module), pkg)...)
	}
	return lines
}

// list runs go list and returns its lines.
func list(t *testing.T, args ...string) []string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", append([]string{"list"}, args...)...)
	var said strings.Builder
	cmd.Stderr = &said
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list %v: %v\n%s", args, err, said.String())
	}
	return strings.Split(strings.TrimSpace(string(out)), "\n")
}

// without are the lines that others lack.
func without(lines, others []string) (only []string) {
	there := map[string]bool{}
	for _, line := range others {
		there[line] = true
	}
	for _, line := range lines {
		if !there[line] {
			only = append(only, line)
		}
	}
	return only
}

func TestRecord(t *testing.T) {
	record, is := newest(t), exported(t)
	if *update {
		must.Do(t, os.WriteFile(record, []byte(strings.Join(is, "\n")+"\n"), 0o644))
	}
	text := must.Get(os.ReadFile(record))(t)
	was := strings.Split(strings.TrimSpace(string(text)), "\n")
	var diff []string
	for _, line := range without(was, is) {
		diff = append(diff, "- "+line)
	}
	for _, line := range without(is, was) {
		diff = append(diff, "+ "+line)
	}
	if diff != nil {
		t.Errorf(
			"the libraries do not export what api/%s says:\n%s\nif that is wanted, run go test ./api -update, and say it in CHANGELOG.md",
			record,
			strings.Join(diff, "\n"),
		)
	}
}
