package checkpoint

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/shardbook/shardbook/internal/must"
)

// TestLock: there is one holder at a time, and its lock ends with it, even if it is killed.
func TestLock(t *testing.T) {
	if dir := os.Getenv(writerDir); dir != "" { // the process that is killed
		must.Get(Lock(dir))(t)
		os.WriteFile(filepath.Join(dir, "locked"), nil, 0o644)
		time.Sleep(time.Hour)
	}
	dir := t.TempDir()
	release, err := Lock(dir)
	must.Do(t, err)
	want := fmt.Sprintf("%s is in use by process %d on ", dir, os.Getpid())
	if _, err := Lock(dir); !errors.Is(err, ErrLocked) || !strings.Contains(err.Error(), want) {
		t.Errorf("error %v, want %q", err, want)
	}
	release()
	kill := startWriter(t, dir)
	for taken := false; !taken; time.Sleep(time.Millisecond) {
		_, err := os.Stat(filepath.Join(dir, "locked"))
		taken = err == nil
	}
	if _, err := Lock(dir); !errors.Is(err, ErrLocked) {
		t.Errorf("another process has it: error %v", err)
	}
	kill()
	if release, err = Lock(dir); err != nil {
		t.Fatalf("the process that had it is gone: %v", err)
	}
	release()
	if _, err := Lock(filepath.Join(dir, "none")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no folder: %v", err)
	}
}
