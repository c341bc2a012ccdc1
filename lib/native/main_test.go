package native_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/shardbook/shardbook/internal/cache"
	"github.com/shardbook/shardbook/internal/must"
	"github.com/shardbook/shardbook/lib/native"
)

// kept is where tests keep libraries that need no folder of their own.
var kept string

// TestMain is also what other processes of these tests run: with childEnv set, one of children.
func TestMain(m *testing.M) {
	os.Setenv("LC_ALL", "C") // compilers' messages
	if name := os.Getenv(childEnv); name != "" {
		children[name]()
		os.Exit(0)
	}
	var err error
	if kept, err = os.MkdirTemp("", "native-test-"); err != nil {
		panic(err)
	}
	code := m.Run()
	os.RemoveAll(kept)
	os.Exit(code)
}

const childEnv = "NATIVE_TEST_CHILD"

var children = map[string]func(){
	"answer": func() {
		var answer func() int
		if _, err := native.Load(answerSource, native.Bind("answer", &answer)); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		fmt.Print(answer())
	},
	"crash": func() {
		var crash func(*int32) int32
		if _, err := native.Load(`int32_t crash(int32_t *p) { return *(volatile int32_t *)p; }`,
			native.Bind("crash", &crash)); err != nil {
			fmt.Println(err)
			return
		}
		defer func() { recover(); os.Exit(0) }() // which does not help
		crash(nil)
	},
}

// child is a process that runs one of children.
func child(t *testing.T, name, cacheDir string) *exec.Cmd {
	t.Helper()
	c := exec.CommandContext(t.Context(), os.Args[0])
	c.Env = append(os.Environ(), childEnv+"="+name, cache.EnvDir+"="+cacheDir)
	return c
}

// script writes a program of the shell and returns its path.
func script(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "script")
	must.Do(t, os.WriteFile(path, []byte("#!/bin/sh\n"+text), 0o755))
	return path
}

// load is native.Load in the tests' folder, of what must compile.
func load(t *testing.T, source string, options ...native.Option) *native.Library {
	t.Helper()
	return must.Get(native.Load(source, append(options, native.WithCache(kept))...))(t)
}

// wants checks that there is an error with all of these words.
func wants(t *testing.T, err error, words ...string) {
	t.Helper()
	if err == nil {
		t.Errorf("no error, want one with %q", words)
		return
	}
	for _, w := range append(words, "native: ") {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("the error does not say %q: %v", w, err)
		}
	}
}
