package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/shardbook/shardbook/internal/kerneltest"
	"github.com/shardbook/shardbook/internal/must"
	"github.com/shardbook/shardbook/internal/systest"
)

// TestGopls completes a notebook's program by the programs that set-up installed.
func TestGopls(t *testing.T) {
	systest.FullOnly(t, "completion by gopls itself")
	k := kerneltest.Ready(t)
	dir := t.TempDir()
	const text = "package main\n\nimport \"github.com/shardbook/shardbook/lib/xla\"\n\nfunc main() {\n\txla.\n}\n"
	must.Do(t, os.WriteFile(filepath.Join(dir, "main.go"), []byte(text), 0o600))
	for _, args := range [][]string{{"mod", "init", "gonb_1"}, {"work", "init", ".", k.Root}} {
		must.Get(output(t.Context(), dir, "go", args...))(t)
	}
	socket := filepath.Join(dir, "gopls_socket")
	gopls := must.Get(k.Command(t.Context(), "gopls", "-listen", "unix;"+socket))(t)
	gopls.Dir = dir
	must.Do(t, gopls.Start())
	c := dial(t, socket)
	c.ask("initialize", workspace(uri(dir)))
	file := uri(filepath.Join(dir, "main.go"))
	c.open(file, text)
	params := object{"textDocument": object{"uri": file}, "position": object{"line": 5, "character": 5}}
	answer := ""
	for begun := time.Now(); !strings.Contains(answer, "AllReduce"); {
		if answer = c.ask("textDocument/completion", params); time.Since(begun) > 5*time.Minute {
			t.Fatalf("the completions of xla. are %.1000s", answer)
		}
	}
	c.change(file, strings.Replace(text, "xla.", "xla.Op", 1))
	params["position"] = object{"line": 5, "character": 7}
	if answer = c.ask("textDocument/completion", params); !strings.Contains(answer, `"newText":"Open"`) {
		t.Errorf("after a change the completions of xla.Op are %.1000s", answer)
	}
	c.conn.Close()
	must.Do(t, gopls.Wait())
}
