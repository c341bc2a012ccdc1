package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/shardbook/shardbook/internal/must"
)

// TestMain lets scripts that relocated writes run this program.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "cell" {
		if err := run(os.Args[1:]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

const program = `package main

import "fmt"

func said() string { return "says" }

func main() { n := said(); fmt.Println(n) }
`

// notebookIn writes a program and a module beside it that the program's workspace uses.
func notebookIn(t *testing.T, text string) (folder string) {
	t.Helper()
	root := t.TempDir()
	folder = filepath.Join(root, "gonb")
	for name, text := range map[string]string{
		"gonb/main.go": text, "gonb/go.mod": "module gonb\n\ngo 1.26\n",
		"gonb/go.work": "go 1.26\n\nuse (\n\t.\n\t../lib\n)\n",
		"lib/go.mod":   "module lib\n", "lib/lib.go": "package lib\n", "lib/.git/head": "1",
	} {
		path := filepath.Join(root, name)
		must.Do(t, os.MkdirAll(filepath.Dir(path), 0o755))
		must.Do(t, os.WriteFile(path, []byte(text), 0o644))
	}
	return folder
}

func keyOf(t *testing.T, folder string) string {
	t.Helper()
	key, ok := readSource(folder).runs().key(folder)
	if !ok {
		t.Fatal("the program has no key")
	}
	return key
}

// A program's key changes with whatever changes what it does, and with nothing else.
func TestKey(t *testing.T) {
	folder := notebookIn(t, program)
	first := keyOf(t, folder)
	for _, test := range []struct {
		name, file, text string
		same             bool
	}{
		{"other declarations", "main.go",
			strings.Replace(program, "func main", "var n = 1\n\nfunc other() { said() }\n\nfunc main", 1), true},
		{"declarations with names of local variables and fields", "main.go",
			strings.Replace(program, "func main() {", "const n, Println = 1, 2\n\nfunc main() {", 1), true},
		{"what git has", "../lib/.git/head", "2", true},
		{"a function that main calls", "main.go", strings.Replace(program, `"says"`, `"said"`, 1), false},
		{"a variable that is not used", "main.go", program + "\nvar m = said()\n", true},
		{"a call before main", "main.go", program + "\nvar _ = said()\n", false},
		{"an import for its effects", "main.go",
			strings.Replace(program, `import "fmt"`, `import "fmt"; import _ "embed"`, 1), false},
		{"an import of the same name", "main.go", strings.Replace(program, `"fmt"`, `"my/fmt"`, 1), false},
		{"a module", "go.mod", "module gonb\n\ngo 1.26\n\nrequire lib v1.0.0\n", false},
		{"a package of the workspace", "../lib/lib.go", "package lib // changed\n", false},
	} {
		path := filepath.Join(folder, test.file)
		before := must.Get(os.ReadFile(path))(t)
		must.Do(t, os.WriteFile(path, []byte(test.text), 0o644))
		if got := keyOf(t, folder); (got == first) != test.same {
			t.Errorf("%s: the key is the same: %v", test.name, got == first)
		}
		must.Do(t, os.WriteFile(path, before, 0o644))
		if test.file == "../lib/lib.go" {
			continue // its time has changed
		}
		if keyOf(t, folder) != first {
			t.Fatalf("after %s it is not what it was", test.name)
		}
	}
	if _, ok := readSource(t.TempDir()).runs().key(folder); ok {
		t.Error("no program has a key")
	}
}

// A program that is kept is there again, with the lines in its messages as they are now, its output and its status.
func TestBuiltBefore(t *testing.T) {
	folder := notebookIn(t, program)
	output := filepath.Join(folder, "out")
	script := "#!/bin/sh\necho says $1\necho \"at $PWD/main.go:5 and main.go:7, not main.gop:5\" >&2\nexit 3\n"
	must.Do(t, os.WriteFile(output, []byte(script), 0o755))
	if buildIn(folder).place(output) {
		t.Fatal("it is there before it was built")
	}
	buildIn(folder).keep(output)
	for _, test := range []struct{ program, five, seven string }{
		{program, "5", "7"},
		{strings.Replace(program, "func main", "\n\nvar n = 1\nfunc main", 1), "5", "10"},
		{strings.Replace(program, "func said", "var n = 1\nfunc said", 1), "6", "8"},
		{program, "5", "7"},
	} {
		must.Do(t, os.WriteFile(filepath.Join(folder, "main.go"), []byte(test.program), 0o644))
		must.Do(t, os.Remove(output)) // as becomeGo does before it builds another
		must.Do(t, os.WriteFile(output, []byte("another"), 0o755))
		if !buildIn(folder).place(output) {
			t.Fatalf("it is not there for\n%s", test.program)
		}
		cmd := exec.Command(output, "much")
		cmd.Dir = folder
		var out, said bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &said
		err := cmd.Run()
		var ended *exec.ExitError
		if !errors.As(err, &ended) || ended.ExitCode() != 3 || out.String() != "says much\n" {
			t.Errorf("%v, prints %q", err, out.String())
		}
		if want := fmt.Sprintf("at %s/main.go:%s and main.go:%s, not main.gop:5\n", folder, test.five, test.seven); said.
			String() != want {
			t.Errorf("it says %q, want %q", said.String(), want)
		}
	}
}
