package main

import (
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/shardbook/shardbook/internal/cache"
	"github.com/shardbook/shardbook/internal/devicetest"
	"github.com/shardbook/shardbook/internal/kerneltest"
	"github.com/shardbook/shardbook/internal/must"
	"github.com/shardbook/shardbook/internal/systest"
	"github.com/shardbook/shardbook/kernel"
)

// envMain makes the test's own binary behave as the command, so that a test runs
// the command as a user would, in a process of its own.
const envMain = "SHARDBOOK_TEST_MAIN"

func TestMain(m *testing.M) {
	if os.Getenv(envMain) != "" {
		if fd, err := strconv.Atoi(os.Getenv(envCompiling)); err == nil {
			go tellCompiling(os.NewFile(uintptr(fd), "compiling"))
		}
		main()
		os.Exit(0)
	}
	devicetest.CompileQuickly()
	status := m.Run()
	if builtIn != "" {
		os.RemoveAll(builtIn)
	}
	os.Exit(status)
}

// shardbook runs the command with variables added to the environment and returns
// what it printed on both outputs and its exit status.
func shardbook(t *testing.T, env []string, args ...string) (stdout, stderr string, status int) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0], args...)
	cmd.Env = append(append(os.Environ(), envMain+"=1"), env...)
	var out, noise strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &noise
	if err := cmd.Run(); err != nil && cmd.ProcessState == nil {
		t.Fatal(err)
	}
	return out.String(), noise.String(), cmd.ProcessState.ExitCode()
}

// files returns a function that writes a file into a folder of the test and returns its path.
func files(t *testing.T) func(name, text string) string {
	dir := t.TempDir()
	return func(name, text string) string {
		t.Helper()
		path := filepath.Join(dir, name)
		writeFile(t, path, text)
		return path
	}
}

func TestVersion(t *testing.T) {
	if out, stderr, status := shardbook(t, nil, "--version"); status != 0 ||
		!regexp.MustCompile(`^shardbook version v\d+\.\d+\.\d+\S*\n$`).MatchString(out) {
		t.Errorf("status %d, %q: %s", status, out, stderr)
	}
}

// TestNotebooksWithParameter runs one notebook with another number of devices.
func TestNotebooksWithParameter(t *testing.T) {
	systest.FullOnly(t, "a notebook with other parameters")
	out := t.TempDir()
	stdout, stderr, status := shardbook(t, nil, "notebooks", "00", "--set", "devices=4", "--out", out)
	if status != 0 || !strings.Contains(stdout, "00-devices: passed") {
		t.Fatalf("exit status %d: %s%s", status, stdout, stderr)
	}
	text := readFile(t, filepath.Join(out, "00-devices.ipynb"))
	if !strings.Contains(text, "every device holds 28") { // 0+1+…+7: two numbers a device
		t.Error("the executed notebook did not use 4 devices")
	}
	if _, err := os.Stat(filepath.Join(out, "00-devices.html")); err != nil {
		t.Error(err)
	}
}

func TestExecPassesFlagsOn(t *testing.T) {
	kerneltest.Ready(t)
	stdout, stderr, status := shardbook(t, nil, "exec", "jupyter", "kernelspec", "list", "--json")
	if status != 0 || !strings.Contains(stdout, `"shardbook"`) {
		t.Errorf("exit status %d: %s%s", status, stdout, stderr)
	}
}

// diagnose runs the doctor and returns what it said, by the check's name.
func diagnose(t *testing.T, env []string, args ...string) (kernel.Diagnosis, map[string]kernel.Check, int) {
	t.Helper()
	stdout, stderr, status := shardbook(t, env, append([]string{"doctor", "--json"}, args...)...)
	var d kernel.Diagnosis
	if err := json.Unmarshal([]byte(stdout), &d); err != nil {
		t.Fatalf("%v: %s%s", err, stdout, stderr)
	}
	checks := map[string]kernel.Check{}
	for _, c := range d.Checks {
		checks[c.Name] = c
		if !c.OK && c.Problem == "" || strings.Contains(c.Problem, "\n") {
			t.Errorf("check %q does not say in one sentence what is wrong: %q", c.Name, c.Problem)
		}
	}
	return d, checks, status
}

func TestDoctorWell(t *testing.T) {
	kerneltest.Ready(t)
	d, checks, status := diagnose(t, nil, "--plugin", "cpu", "--devices", "3")
	if status != 0 || !d.OK {
		t.Errorf("exit status %d, %+v", status, checks)
	}
	if len(d.Devices) != 3 || len(d.Canaries) < 5 {
		t.Errorf("%d devices, want 3; canaries %q", len(d.Devices), d.Canaries)
	}
	for _, name := range []string{"go", "C compiler", "python", "PJRT plugin", "jupyter-lab", "gonb", "gopls"} {
		if c := checks[name]; c.Version == "" || c.Path == "" {
			t.Errorf("%s: no version or path: %+v", name, c)
		}
	}
	stdout, _, status := shardbook(t, nil, "doctor", "--plugin", "cpu")
	if status != 0 || !strings.Contains(stdout, "PJRT plugin") || strings.Contains(stdout, "MISSING") {
		t.Errorf("exit status %d: %s", status, stdout)
	}
}

// TestDoctorIll breaks several things at a time, each of which one check has to tell.
func TestDoctorIll(t *testing.T) {
	oldPython, noVenv := programs(t, "echo /x/python3; echo 3.8.2; echo False; echo venv"), programs(t,
		"echo /x/python3; echo 3.12.1; echo True; echo none")
	for _, test := range []struct {
		env, args []string
		want      map[string][]string // by check: all of them in its sentence
	}{
		{[]string{"PATH=" + programs(t, "")}, []string{"--plugin", "/no/such/plugin.so"}, map[string][]string{
			"PJRT plugin": {"/no/such/plugin.so", "correct the path"},
			"python":      {"no python3", "apt-get install python3"},
		}},
		{[]string{"PATH=" + oldPython}, []string{"--plugin", library(t, "0, 12")}, map[string][]string{
			"PJRT plugin": {"0.12", "need 0.81 or newer", "update it"},
			"python":      {"3.8.2", "need 3.10 or newer"},
		}},
		{[]string{"PATH=" + noVenv}, []string{"--plugin", library(t, "0, 115")}, map[string][]string{
			"PJRT plugin": {"ended the process", "SHARDBOOK_PLUGIN"},
			"python":      {"no venv module", "apt-get install python3-venv"},
		}},
		{[]string{"PJRT_PLUGIN_LIBRARY_PATH="}, []string{"--cache", halfInstalled(t)}, map[string][]string{
			"PJRT plugin":      {"no PJRT plugin found", "shardbook setup"},
			"installed python": {"half installed", "shardbook setup"},
		}},
	} {
		d, checks, status := diagnose(t, test.env, test.args...)
		if status != 1 || d.OK {
			t.Errorf("%q: exit status %d, ok %v", test.args, status, d.OK)
		}
		for name, want := range test.want {
			isIll(t, checks[name], want)
		}
	}
}

// TestDoctorOldDriver has a driver that is too old for the plugin for CUDA, of which only its path is looked at.
func TestDoctorOldDriver(t *testing.T) {
	drivers, plugins := t.TempDir(), filepath.Join(t.TempDir(), "xla_cuda13")
	source := filepath.Join(drivers, "driver.c")
	writeFile(t, source, "int cuDriverGetVersion(int *v) { *v = 12040; return 0; }\n")
	output, err := exec.Command("gcc", "-shared", "-fPIC", "-o", filepath.Join(drivers, "libcuda.so.1"), source).
		CombinedOutput()
	if err != nil {
		t.Fatalf("gcc: %v: %s", err, output)
	}
	must.Do(t, os.Mkdir(plugins, 0o755))
	path := filepath.Join(plugins, "xla_cuda_plugin.so")
	must.Do(t, os.Link(library(t, "0, 115"), path))
	_, checks, status := diagnose(t, []string{"LD_LIBRARY_PATH=" + drivers}, "--plugin", path)
	for _, name := range []string{"NVIDIA driver", "PJRT plugin"} {
		isIll(t, checks[name], []string{"CUDA 12.4, and the plugin needs CUDA 13", "driver 580", "SHARDBOOK_PLUGIN=cpu"})
	}
	if isIll(t, checks["CUDA libraries"], []string{"missing: ", "setup --cuda"}); status != 1 {
		t.Errorf("exit status %d", status)
	}
}

func TestDoctorNoSpace(t *testing.T) {
	_, checks, status := diagnose(t, nil, "--plugin", "/no/such/plugin.so", "--cache", fullDisk(t))
	if isIll(t, checks["cache folder"], []string{"needed", "free some space", cache.EnvDir}); status != 1 {
		t.Errorf("exit status %d", status)
	}
}

// isIll checks that a check failed, with a sentence that has all the parts.
func isIll(t *testing.T, c kernel.Check, want []string) {
	t.Helper()
	if c.OK {
		t.Errorf("%s passes: %+v", c.Name, c)
	}
	for _, part := range want {
		if !strings.Contains(c.Problem, part) {
			t.Errorf("%s: %q does not say %q", c.Name, c.Problem, part)
		}
	}
}

// halfInstalled returns a cache folder in which the installation of Python's environment was cut off.
func halfInstalled(t *testing.T) string {
	t.Helper()
	root := t.TempDir()
	_, checks, _ := diagnose(t, nil, "--plugin", "/no/such/plugin.so", "--cache", root)
	must.Do(t, os.MkdirAll(filepath.Join(root, "python", checks["installed python"].Version+"-1234"), 0o755))
	return root
}

// library compiles a plugin that says it speaks that version of the PJRT API, and
// has no function behind it.
func library(t *testing.T, version string) string {
	t.Helper()
	dir := t.TempDir()
	source, so := filepath.Join(dir, "a.c"), filepath.Join(dir, "pjrt_c_api_cpu_plugin.so")
	text := `#include <stddef.h>
static struct { size_t size; void *ext; size_t vsize; void *vext; int major, minor;
void *functions[200]; } api = {1640, 0, 24, 0, ` + version + `};
void *GetPjrtApi(void) { return &api; }`
	writeFile(t, source, text)
	if output, err := exec.Command("gcc", "-shared", "-fPIC", "-o", so, source).CombinedOutput(); err != nil {
		t.Fatalf("gcc: %v: %s", err, output)
	}
	return so
}

// programs returns a folder with go, gcc and, if script is not empty, a python3
// that runs it.
func programs(t *testing.T, script string) string {
	t.Helper()
	dir := t.TempDir()
	for _, name := range []string{"go", "gcc"} {
		path := must.Get(exec.LookPath(name))(t)
		must.Do(t, os.Symlink(path, filepath.Join(dir, name)))
	}
	if script != "" {
		writeFile(t, filepath.Join(dir, "python3"), "#!/bin/sh\n"+script+"\n")
	}
	return dir
}

// fullDisk returns a folder on a file system of one megabyte.
func fullDisk(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=1m"); err != nil {
		systest.Skip(t, systest.NotRoot, "a small file system cannot be mounted: "+err.Error())
	}
	t.Cleanup(func() { syscall.Unmount(dir, 0) })
	return dir
}

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
	must.Get(second.Ensure(t.Context(), nil))(t)
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
