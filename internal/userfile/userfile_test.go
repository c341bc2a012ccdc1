package userfile_test

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/shardbook/shardbook/internal/must"
	"github.com/shardbook/shardbook/internal/userfile"
)

func TestSpecialFiles(t *testing.T) {
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	listener := must.Get(net.Listen("unix", at("socket")))(t)
	defer listener.Close()
	must.Do(t, syscall.Mkfifo(at("pipe"), 0o644))
	must.Do(t, os.WriteFile(at("sparse"), nil, 0o644))
	must.Do(t, os.Truncate(at("sparse"), 100e9))
	must.Do(t, os.Symlink("pipe", at("link")))
	for path, want := range map[string]string{
		dir: "a folder", at("pipe"): "a named pipe", at("link"): "a named pipe", at("socket"): "a socket",
		"/dev/zero": "a character device", "/dev/full": "a character device",
		at("sparse"): "100000000000 bytes: give a file of at most 10",
	} {
		_, read := userfile.Read(path, 10)
		_, edit := userfile.Edit(path, os.O_TRUNC, 10)
		for _, err := range []error{read, edit} {
			if err == nil || !strings.Contains(err.Error(), path+" ") || !strings.Contains(err.Error(), want) {
				t.Errorf("%s: error %v, want %q", path, err, want)
			}
		}
	}
	if info, err := os.Stat(at("sparse")); err != nil || info.Size() != 100e9 {
		t.Errorf("a file that is too large was changed: %v", err)
	}
	for path, want := range map[string]string{dir: "a folder", at("socket"): "a socket", at("pipe"): "nobody reads"} {
		if _, err := userfile.Append(path); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error %v, want %q", path, err, want)
		}
	}
}

func TestWithinTheSize(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	if _, err := userfile.Read(path, 3); !os.IsNotExist(err) {
		t.Errorf("reading a missing file: %v", err)
	}
	for range 2 { // a new file, then an existing one
		file := must.Get(userfile.Edit(path, os.O_TRUNC, 3))(t)
		must.Get(file.WriteString("abc"))(t)
		must.Do(t, file.Close())
	}
	if text, err := userfile.Read(path, 3); err != nil || string(text) != "abc" {
		t.Errorf("read %q, error %v", text, err)
	}
	// A file that grows after it was opened, like those of /proc, whose size is 0.
	if _, err := userfile.Read("/proc/self/status", 3); err == nil ||
		!strings.Contains(err.Error(), "more than 3 bytes") {
		t.Errorf("error %v", err)
	}
	file := must.Get(userfile.Append(path))(t)
	defer file.Close()
	must.Get(file.WriteString("def"))(t)
	if text, err := os.ReadFile(path); err != nil || string(text) != "abcdef" {
		t.Errorf("read %q, error %v", text, err)
	}
}

func TestAppendToPipe(t *testing.T) {
	path := filepath.Join(t.TempDir(), "pipe")
	must.Do(t, syscall.Mkfifo(path, 0o644))
	reader := must.Get(os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0))(t)
	defer reader.Close()
	writer := must.Get(userfile.Append(path))(t)
	must.Get(writer.WriteString("abc"))(t)
	writer.Close()
	text := make([]byte, 10)
	if n, err := reader.Read(text); err != nil || string(text[:n]) != "abc" {
		t.Errorf("read %q, error %v", text[:n], err)
	}
}
