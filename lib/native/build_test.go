package native_test

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/shardbook/shardbook/internal/must"
	"github.com/shardbook/shardbook/lib/native"
)

const answerSource = `int64_t answer(void) { return 42; }`

// counted makes the compiler one that notes each of its runs, and returns their number.
func counted(t *testing.T) (runs func() int) {
	t.Helper()
	log := filepath.Join(t.TempDir(), "log")
	t.Setenv("CC", script(t, `echo run >> '`+log+`'; exec gcc "$@"`))
	return func() int {
		text, err := os.ReadFile(log)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			t.Fatal(err)
		}
		return strings.Count(string(text), "run")
	}
}

func answered(t *testing.T, dir, source string, flags ...string) {
	t.Helper()
	var answer func() int
	must.Get(native.Load(source, native.WithCache(dir), native.Flags(flags...), native.Bind("answer", &answer)))(t)
	if got := answer(); got != 42 {
		t.Errorf("answer is %d", got)
	}
}

// Only what would change the library has it compiled again.
func TestCompiledOnce(t *testing.T) {
	runs, dir := counted(t), t.TempDir()
	for _, c := range []struct {
		name   string
		want   int
		source string
		flags  []string
	}{
		{"first", 1, answerSource, nil},
		{"again", 1, answerSource, nil},
		{"another source", 2, answerSource + "\n", nil},
		{"another flag", 3, answerSource, []string{"-O0"}},
		{"flags that only look the same", 4, answerSource, []string{"-DA", "-DB"}},
		{"flags in one", 5, answerSource, []string{"-DA=-DB"}},
		{"the first again", 5, answerSource, nil},
	} {
		if answered(t, dir, c.source, c.flags...); runs() != c.want {
			t.Errorf("%s: the compiler has run %d times, want %d", c.name, runs(), c.want)
		}
	}
	later := time.Now().Add(time.Hour) // the compiler is another version
	must.Do(t, os.Chtimes(os.Getenv("CC"), later, later))
	if answered(t, dir, answerSource); runs() != 6 {
		t.Error("what another version of the compiler made is used")
	}
	if answered(t, t.TempDir(), answerSource); runs() != 7 {
		t.Error("two folders have one library")
	}
}

// Processes and goroutines that load one source at once all get it, and leave nothing but libraries.
func TestLoadedAtOnce(t *testing.T) {
	dir := t.TempDir()
	var all sync.WaitGroup
	for range 3 {
		all.Go(func() {
			answer, err := child(t, "answer", dir).CombinedOutput()
			if err != nil || string(answer) != "42" {
				t.Errorf("%v: %s", err, answer)
			}
		})
		all.Go(func() { answered(t, dir, answerSource) })
	}
	all.Wait()
	left, err := filepath.Glob(filepath.Join(dir, "native", "*"))
	if err != nil || len(left) != 1 {
		t.Errorf("%q are left (%v), want one library", left, err)
	}
}

func TestCompileErrors(t *testing.T) {
	for _, c := range []struct {
		name, source string
		flags, words []string
	}{
		{"syntax", "int a;\nint b = ;\n", nil, []string{"source.c:2:9: error", "gcc"}},
		{"last line", "int a;\n#error stop", nil, []string{"source.c:2:", "stop"}},
		{"open comment", "int a; /*", nil, []string{"source.c:1:", "unterminated comment"}},
		{"open condition", "#if 1", nil, []string{"source.c:1:", "unterminated #if"}},
		{"flag", "", []string{"-fno-such-flag"}, []string{"-fno-such-flag"}},
		{"no shell", "", []string{"; echo hello >&2"}, []string{"; echo hello >&2"}},
		{"library", "", []string{"-lno_such_library"}, []string{"no_such_library"}},
		{"symbol", "void gone(void); void f(void) { gone(); }", nil, []string{"gone", "undefined symbol"}},
		{"no bytes for a source", "\x00\xff", nil, []string{"source.c:1:"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			_, err := native.Load(c.source, native.WithCache(kept), native.Flags(c.flags...))
			wants(t, err, c.words...)
		})
	}
	var failed *exec.ExitError
	_, err := native.Load("x", native.WithCache(kept))
	if !errors.As(err, &failed) || strings.Contains(err.Error(), kept) {
		t.Errorf("an error that does not wrap the compiler's, or with folders in it: %v", err)
	}
	many := strings.Repeat("#warning again\n", 1000) + "#error last"
	if _, err := native.Load(many, native.WithCache(kept)); err == nil || len(err.Error()) > 9000 {
		t.Errorf("all of a thousand messages, or none: %d bytes", len(err.Error()))
	}
}

// Flags see the current folder, as in a terminal.
func TestInclude(t *testing.T) {
	t.Chdir(t.TempDir())
	must.Do(t, os.WriteFile("answer.h", []byte(answerSource), 0o644))
	_, err := native.Load(`#include "answer.h"`, native.WithCache(t.TempDir()))
	wants(t, err, "answer.h")
	answered(t, t.TempDir(), `#include "answer.h"`, "-I.")
}

func TestNoCompiler(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	t.Setenv("CC", "")
	_, err := native.Load("", native.WithCache(kept))
	wants(t, err, "no C compiler", "install gcc", "CC")
	t.Setenv("CC", "no-such-compiler -O2")
	_, err = native.Load("", native.WithCache(kept))
	wants(t, err, `"no-such-compiler"`, "CC")
}

// CC may have arguments, and a compiler that makes nothing is found out.
func TestOddCompilers(t *testing.T) {
	t.Setenv("CC", "gcc -DANSWER=42")
	answered(t, t.TempDir(), `int64_t answer(void) { return ANSWER; }`)
	t.Setenv("CC", script(t, "exit 0"))
	_, err := native.Load("", native.WithCache(t.TempDir()))
	wants(t, err, "library.so")
	t.Setenv("CC", script(t, `while [ "$1" != -o ]; do shift; done; echo text > "$2"`))
	_, err = native.Load("", native.WithCache(t.TempDir()))
	wants(t, err, "cannot be loaded")
}

func TestNoFolder(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	must.Do(t, os.WriteFile(file, nil, 0o644))
	for _, dir := range []string{file, filepath.Join(file, "below")} {
		_, err := native.Load("", native.WithCache(dir))
		wants(t, err, file, "SHARDBOOK_CACHE")
	}
}

// As the package's comment says.
func TestCrashEndsTheProcess(t *testing.T) {
	said, err := child(t, "crash", kept).CombinedOutput()
	if err == nil || !strings.Contains(string(said), "SIGSEGV") {
		t.Errorf("%v: %s", err, said)
	}
}
