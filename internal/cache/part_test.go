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
	"time"

	"github.com/shardbook/shardbook/internal/must"
)

// greeting is a part that writes one file, and counts how often it is installed.
func greeting(root string, installs *atomic.Int32) Part {
	install := func(_ context.Context, dir string, report Progress) error {
		report(0, 1, "writing")
		installs.Add(1)
		return os.WriteFile(filepath.Join(dir, "hello"), []byte("hello"), 0o644)
	}
	return Part{Root: root, Name: "greeting", Version: "v1", Install: install}
}

func TestEnsureInstallsOnce(t *testing.T) {
	root := t.TempDir()
	var installs atomic.Int32
	var callers sync.WaitGroup
	for range 8 {
		callers.Go(func() {
			dir, err := greeting(root, &installs).Ensure(t.Context(), nil)
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

// TestCutOff lets an installation break off while a program that it started goes on
// writing: what that program writes must never be part of what counts.
func TestCutOff(t *testing.T) {
	root := t.TempDir()
	var abandoned string
	cut := Part{Root: root, Name: "wheel", Version: "v1", Install: func(_ context.Context, dir string,
		_ Progress) error {
		abandoned = dir
		panic("the process is killed here")
	}}
	func() {
		defer func() { recover() }()
		cut.Ensure(t.Context(), nil)
	}()
	if _, ok := cut.Installed(); ok || !cut.Begun() {
		t.Fatal("a part whose installation broke off counts as installed, or as not begun")
	}
	again := cut
	again.Install = func(_ context.Context, dir string, _ Progress) error {
		os.MkdirAll(abandoned, 0o755)
		os.WriteFile(filepath.Join(abandoned, "late"), []byte("x"), 0o644)
		return os.WriteFile(filepath.Join(dir, "whole"), []byte("x"), 0o644)
	}
	dir, err := again.Ensure(t.Context(), nil)
	must.Do(t, err)
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 1 || entries[0].Name() != "whole" {
		t.Errorf("the part holds %v (error %v), want only what its own installation wrote", entries, err)
	}
	if got, ok := again.Installed(); !ok || got != dir || again.Begun() {
		t.Errorf("Installed returns %q, %v; want %q", got, ok, dir)
	}
}

func TestUnusedVersionsAreRemoved(t *testing.T) {
	root := t.TempDir()
	version := func(v string) Part {
		return Part{Root: root, Name: "tools", Version: v,
			Install: func(context.Context, string, Progress) error { return nil }}
	}
	for _, v := range []string{"old", "recent"} {
		must.Get(version(v).Ensure(t.Context(), nil))(t)
	}
	long := time.Now().Add(-2 * unusedFor)
	must.Do(t, os.Chtimes(version("old").path(completeSuffix), long, long))
	must.Get(version("new").Ensure(t.Context(), nil))(t)
	for v, want := range map[string]bool{"old": false, "recent": true, "new": true} {
		if _, ok := version(v).Installed(); ok != want {
			t.Errorf("version %q is there: %v, want %v", v, ok, want)
		}
	}
}

func TestEnsureFailureLeavesNothing(t *testing.T) {
	root := t.TempDir()
	boom := errors.New("connection reset")
	fail := true
	p := Part{Root: root, Name: "wheel", Version: "v1", Install: func(_ context.Context, dir string, _ Progress) error {
		if fail {
			os.WriteFile(filepath.Join(dir, "half"), []byte("x"), 0o644)
			return boom
		}
		return nil
	}}
	_, err := p.Ensure(t.Context(), nil)
	if !errors.Is(err, boom) || !strings.Contains(err.Error(), "installing wheel") {
		t.Fatalf("error %v, want one that names the part and wraps the cause", err)
	}
	if tries := p.tries(); len(tries) > 0 {
		t.Errorf("a failed installation left %q behind", tries)
	}
	fail = false
	if _, err := p.Ensure(t.Context(), nil); err != nil {
		t.Errorf("the next try: %v", err)
	}
}

func TestEnsureWaitsNoLongerThanItsContext(t *testing.T) {
	root := t.TempDir()
	started, release := make(chan struct{}), make(chan struct{})
	slow := Part{Root: root, Name: "slow", Version: "v1", Install: func(context.Context, string, Progress) error {
		close(started)
		<-release
		return nil
	}}
	done := make(chan error, 1)
	go func() { _, err := slow.Ensure(context.Background(), nil); done <- err }()
	<-started
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := slow.Ensure(ctx, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("a second caller with a cancelled context got %v", err)
	}
	close(release)
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func TestNoSpace(t *testing.T) {
	install := func(context.Context, string, Progress) error {
		t.Error("installed although the space is not there")
		return nil
	}
	_, err := Part{Root: t.TempDir(), Name: "giant", Version: "v1", Bytes: 1 << 60,
		Install: install}.Ensure(t.Context(), nil)
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
