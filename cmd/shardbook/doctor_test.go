package main

import (
	"context"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/shardbook/shardbook/internal/cache"
	"github.com/shardbook/shardbook/internal/systest"
)

// TestDoctorNamesThePlugin has the second of the pinned wheels in the cache, as where the first could not be had.
func TestDoctorNamesThePlugin(t *testing.T) {
	if runtime.GOOS != "linux" {
		systest.Skip(t, systest.System, "PyPI has no plugin for this system")
	}
	root, so := t.TempDir(), library(t, "0, 12")
	second := cache.Part{Root: root, Name: "pjrt-cpu-plugin", Version: "xla-cpu-pjrt-0.0.1",
		Install: func(_ context.Context, dir string, _ cache.Progress) error {
			return os.Link(so, filepath.Join(dir, "pjrt_c_api_cpu_plugin.so"))
		}}
	if _, err := second.Ensure(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	want := "cache, xla-cpu-pjrt 0.0.1 from PyPI"
	if runtime.GOARCH == "amd64" {
		want += ", fallback for lammps-jax-pjrt-cpu 0.11.2"
	}
	env := []string{"PJRT_PLUGIN_LIBRARY_PATH="}
	_, checks, _ := diagnose(t, env, "--plugin", "cpu", "--cache", root)
	if c := checks["PJRT plugin"]; c.Source != want || !strings.HasPrefix(c.Path, root) {
		t.Errorf("as JSON: %+v, want the source %q", c, want)
	}
	stdout, _, _ := shardbook(t, env, "doctor", "--plugin", "cpu", "--cache", root)
	if !strings.Contains(stdout, want+"  ("+root) {
		t.Errorf("as text: %s", stdout)
	}
}
