package checkpoint

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/internal/must"
	"github.com/shardbook/shardbook/lib/params"
)

// openAndRead reads a checkpoint as a program does.
func openAndRead(t *testing.T, path string) ([]*tensors.Tensor, error) {
	t.Helper()
	c, err := Open(path)
	if err != nil {
		return nil, err
	}
	return c.Read(t.Context(), c.Tree())
}

// small saves a checkpoint of some hundred bytes.
func small(t *testing.T, dir string, step int) string {
	t.Helper()
	tree := params.Tree{params.New("w", dtypes.BFloat16, 3), params.New("b", dtypes.Bool)}
	values := must.Get(params.Zeros(tree))(t)
	path := must.Get(Save(t.Context(), dir, step, "meta", tree, values, 0))(t)
	must.Get(openAndRead(t, path))(t)
	return path
}

// Every flipped bit, every shorter length and every additional byte, in every file, is an error that names the file.
func TestEveryDamage(t *testing.T) {
	path := small(t, t.TempDir(), 1)
	for _, file := range listing(t, path) {
		name := filepath.Join(path, file)
		good := must.Get(os.ReadFile(name))(t)
		f := must.Get(os.OpenFile(name, os.O_RDWR, 0))(t)
		defer f.Close()
		write := func(text []byte) { // in place, which is faster than anew
			must.Get(f.WriteAt(text, 0))(t)
			must.Do(t, f.Truncate(int64(len(text))))
		}
		try := func(what string, text []byte) {
			write(text)
			values, err := openAndRead(t, path)
			wantError(t, fmt.Sprintf("%s: %s", file, what), err, name)
			if values != nil {
				t.Errorf("%s: %s: values were handed out", file, what)
			}
		}
		for i := range good {
			for bit := range 8 {
				bad := bytes.Clone(good)
				bad[i] ^= 1 << bit
				try(fmt.Sprintf("bit %d of byte %d flipped", bit, i), bad)
			}
			try(fmt.Sprintf("cut to %d bytes", i), good[:i])
		}
		for _, more := range []string{"\x00", " ", "\n", "{}"} {
			try(fmt.Sprintf("with %q added", more), append(bytes.Clone(good), more...))
		}
		write(good)
	}
	if _, err := openAndRead(t, path); err != nil {
		t.Errorf("restored: %v", err)
	}
}

func TestFilesMoved(t *testing.T) {
	for _, c := range []struct {
		what string
		do   func(path, other string) error
		want string
	}{
		{"data missing", func(path, _ string) error { return os.Remove(filepath.Join(path, dataName)) },
			dataName + " is missing"},
		{"data of another step", func(path, other string) error {
			return os.Rename(filepath.Join(other, dataName), filepath.Join(path, dataName))
		}, "its SHA-256 is"},
		{"manifest of another step", func(path, other string) error {
			return os.Rename(filepath.Join(other, manifestName), filepath.Join(path, manifestName))
		}, "has step 2, but its folder's name says step 1"},
		{"an extra file", func(path, _ string) error {
			return os.WriteFile(filepath.Join(path, "data-00001.safetensors"), nil, 0o666)
		}, "data-00001.safetensors is not in the checkpoint's manifest: remove it"},
		{"an extra folder", func(path, _ string) error { return os.Mkdir(filepath.Join(path, "x"), 0o777) },
			"x is not in"},
		{"a link", func(path, other string) error {
			name := filepath.Join(path, dataName)
			if err := os.Remove(name); err != nil {
				return err
			}
			return os.Symlink(filepath.Join(other, dataName), name)
		}, dataName + " is not a regular file"},
		{"a pipe", func(path, _ string) error { // to open it would wait for ever
			name := filepath.Join(path, manifestName)
			if err := os.Remove(name); err != nil {
				return err
			}
			return syscall.Mkfifo(name, 0o666)
		}, manifestName + " is not a regular file"},
		{"a manifest of a terabyte", func(path, _ string) error {
			return os.Truncate(filepath.Join(path, manifestName), 1<<40)
		}, "1099511627776 bytes"},
	} {
		dir := t.TempDir()
		path, other := small(t, dir, 1), small(t, dir, 2)
		must.Do(t, c.do(path, other))
		_, err := openAndRead(t, path)
		wantError(t, c.what, err, path, c.want)
	}
	// A copy may have any name that is not another step's.
	path := small(t, t.TempDir(), 1)
	best := filepath.Join(filepath.Dir(path), "best")
	must.Do(t, os.Rename(path, best))
	if _, err := openAndRead(t, best); err != nil {
		t.Error(err)
	}
}

// Read notices a file that changed after Open.
func TestChangedAfterOpen(t *testing.T) {
	path := small(t, t.TempDir(), 1)
	c := open(t, path)
	name := filepath.Join(path, dataName)
	must.Do(t, os.Truncate(name, 20))
	_, err := c.Read(t.Context(), c.Tree())
	wantError(t, "cut", err, name, "20 bytes")
	must.Do(t, os.RemoveAll(path))
	_, err = c.Read(t.Context(), c.Tree())
	wantError(t, "removed", err, name)
}

// An error names everything that the model needs and the checkpoint lacks, before anything is read.
func TestDiffers(t *testing.T) {
	saved := params.Tree{params.New("h0.qkv.w", dtypes.Float32, 64, 192), params.New("b", dtypes.Float32, 2)}
	values := must.Get(params.Zeros(saved))(t)
	path := must.Get(Save(t.Context(), t.TempDir(), 1, nil, saved, values, 0))(t)
	c := open(t, path)
	for _, d := range []struct {
		tree params.Tree
		want []string
	}{
		{params.Tree{params.New("h0.qkv.w", dtypes.Float32, 128, 384)},
			[]string{path, "h0.qkv.w has shape [64 192] in the checkpoint, [128 384] in the model"}},
		{params.Tree{params.New("h0.qkv.w", dtypes.Float32, 192, 64)},
			[]string{"[64 192] in the checkpoint, [192 64] in the model"}},
		{params.Tree{params.New("b", dtypes.Float32)}, []string{"b has shape [2] in the checkpoint, [] in the model"}},
		{params.Tree{params.New("b", dtypes.Int32, 2)}, []string{
			"b has element type Float32 in the checkpoint, Int32 in the model"}},
		{params.Tree{params.New("c", dtypes.Int32, 2), params.New("b", dtypes.Float32, 3), saved[0]},
			[]string{"c is not in the checkpoint; b has shape"}},
		{allTypes(2), []string{"s.Bool is not in", fmt.Sprintf("and %d more", 2*len(names)-5)}},
		{params.Tree{saved[0], saved[0]}, []string{`both named "h0.qkv.w"`}},
	} {
		got, err := c.Read(context.Background(), d.tree)
		wantError(t, strings.Join(d.want, ", "), err, d.want...)
		if got != nil {
			t.Errorf("%v: values were handed out", d.tree)
		}
	}
}

// Only regular files are opened, and Open never waits.
func TestOpenRegular(t *testing.T) {
	dir := t.TempDir()
	name := filepath.Join(dir, "name")
	for what, plant := range map[string]func() error{
		"a link":            func() error { return os.Symlink(os.Args[0], name) },
		"a link to nothing": func() error { return os.Symlink("nothing", name) },
		"a folder":          func() error { return os.Mkdir(name, 0o755) },
		"a pipe":            func() error { return syscall.Mkfifo(name, 0o644) },
		"a socket": func() error {
			l, err := net.Listen("unix", name)
			if err == nil {
				t.Cleanup(func() { l.Close() })
			}
			return err
		},
	} {
		must.Do(t, plant())
		for _, flag := range []int{os.O_RDONLY, os.O_RDWR} {
			f, _, err := openWith(name, flag)
			if f != nil || err == nil {
				t.Errorf("%s was opened", what)
			} else if flag == os.O_RDONLY && !strings.HasPrefix(err.Error(), name+" is not a regular file") {
				t.Errorf("of %s the error is %v", what, err)
			}
		}
		must.Do(t, os.Remove(name))
	}
	if _, _, err := openRegular(name); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("of nothing the error is %v", err)
	}
	if _, _, err := openRegular("/dev/null"); err == nil || !strings.Contains(err.Error(), "is not a regular file") {
		t.Errorf("of a device the error is %v", err)
	}
}
