package cache

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
)

// greeting is a part that writes one file, and counts how often it is installed.
func greeting(installs *atomic.Int32) Part {
	return Part{Name: "greeting", Version: "v1", Install: func(_ context.Context, dir string, report Progress) error {
		report(0, 1, "writing")
		installs.Add(1)
		return os.WriteFile(filepath.Join(dir, "hello"), []byte("hello"), 0o644)
	}}
}

func TestEnsureInstallsOnce(t *testing.T) {
	root := t.TempDir()
	var installs atomic.Int32
	var callers sync.WaitGroup
	for range 8 {
		callers.Go(func() {
			dir, err := greeting(&installs).Ensure(t.Context(), root, nil)
			if err != nil {
				t.Error(err)
				return
			}
			if text, _ := os.ReadFile(filepath.Join(dir, "hello")); string(text) != "hello" {
				t.Errorf("Ensure returned before the part was complete: %q", text)
			}
		})
	}
	callers.Wait()
	if n := installs.Load(); n != 1 {
		t.Errorf("installed %d times, want once", n)
	}
}

func TestEnsureReplacesHalfInstalled(t *testing.T) {
	root := t.TempDir()
	var installs atomic.Int32
	p := greeting(&installs)
	stale := filepath.Join(p.Dir(root), "left-over")
	if err := os.MkdirAll(filepath.Dir(stale), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(stale, []byte("half a download"), 0o644); err != nil {
		t.Fatal(err)
	}
	if p.Installed(root) {
		t.Fatal("a folder without its marker counts as installed")
	}
	if _, err := p.Ensure(t.Context(), root, nil); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(stale); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the half-installed file is still there (err %v)", err)
	}
}

func TestEnsureFailureLeavesNothing(t *testing.T) {
	root := t.TempDir()
	boom := errors.New("connection reset")
	fail := true
	p := Part{Name: "wheel", Version: "v1", Install: func(_ context.Context, dir string, _ Progress) error {
		if fail {
			os.WriteFile(filepath.Join(dir, "half"), []byte("x"), 0o644)
			return boom
		}
		return nil
	}}
	_, err := p.Ensure(t.Context(), root, nil)
	if !errors.Is(err, boom) || !strings.Contains(err.Error(), "installing wheel") {
		t.Fatalf("error %v, want one that names the part and wraps the cause", err)
	}
	if _, err := os.Stat(p.Dir(root)); !errors.Is(err, os.ErrNotExist) {
		t.Error("a failed installation left its folder behind")
	}
	fail = false
	if _, err := p.Ensure(t.Context(), root, nil); err != nil {
		t.Errorf("the next try: %v", err)
	}
}

func TestEnsureWaitsNoLongerThanItsContext(t *testing.T) {
	root := t.TempDir()
	started, release := make(chan struct{}), make(chan struct{})
	slow := Part{Name: "slow", Version: "v1", Install: func(context.Context, string, Progress) error {
		close(started)
		<-release
		return nil
	}}
	done := make(chan error, 1)
	go func() { _, err := slow.Ensure(context.Background(), root, nil); done <- err }()
	<-started
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := slow.Ensure(ctx, root, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("a second caller with a cancelled context got %v", err)
	}
	close(release)
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func TestNoSpace(t *testing.T) {
	p := Part{Name: "giant", Version: "v1", Bytes: 1 << 60, Install: func(context.Context, string, Progress) error {
		t.Error("installed although the space is not there")
		return nil
	}}
	_, err := p.Ensure(t.Context(), t.TempDir(), nil)
	if !errors.Is(err, syscall.ENOSPC) || !strings.Contains(err.Error(), EnvDir) {
		t.Errorf("error %v, want ENOSPC and what to do", err)
	}
}

func TestDir(t *testing.T) {
	t.Setenv("XDG_CACHE_HOME", "/xdg")
	t.Setenv(EnvDir, "")
	if got, err := Dir(""); err != nil || got != "/xdg/shardbook" {
		t.Errorf("default: %q, %v", got, err)
	}
	t.Setenv(EnvDir, "/from-env")
	if got, err := Dir(""); err != nil || got != "/from-env" {
		t.Errorf("environment: %q, %v", got, err)
	}
	if got, err := Dir("/from-option"); err != nil || got != "/from-option" {
		t.Errorf("option: %q, %v", got, err)
	}
	file := filepath.Join(t.TempDir(), "file")
	os.WriteFile(file, nil, 0o644)
	if _, err := Dir(file); err == nil || !strings.Contains(err.Error(), file) {
		t.Errorf("a file as cache folder: %v", err)
	}
}
