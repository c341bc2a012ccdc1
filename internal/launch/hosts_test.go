package launch

import (
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/shardbook/shardbook/internal/must"
)

func TestParseHostfile(t *testing.T) {
	const file = "# the rack\nnode1 slots=2 max_slots=4\n\n  node2.rack-1  # one rank\nnode1 slots=1\n10.0.0.3 " +
		"max-slots=2 slots=8\r\n"
	want := []Host{{"node1", 3}, {"node2.rack-1", 1}, {"10.0.0.3", 8}}
	if got, err := ParseHostfile(strings.NewReader(file)); err != nil || !slices.Equal(got, want) {
		t.Errorf("%v, %v, want %v", got, err, want)
	}
	for _, test := range []struct{ file, want string }{
		{"", "no host in it"},
		{"# only this\n", "no host in it"},
		{"a\nb slots=0", "line 2: host \"b\" has \"0\" slots: want 1 to"},
		{"a slots=many", `"many" slots`},
		{"a slots=", `"slots="`},
		{"a slots=65537", `"65537" slots`},
		{"a slots=40000\na slots=40000", "80000 slots in all"},
		{"a 2", `"2" after host "a": want slots=N`},
		{"a:2", `"a:2" is no host name`},
		{"-oProxyCommand=x", "is no host name"},
		{"user@a", "user"},
		{"a,b", "is no host name"},
	} {
		if got, err := ParseHostfile(strings.NewReader(test.file)); err == nil || !strings.Contains(err.Error(),
			test.want) {
			t.Errorf("%q: %v, %v, want an error with %q", test.file, got, err, test.want)
		}
	}
}

// Whatever is in a file, it is an error, or hosts that a list has without a change of meaning.
func FuzzParseHostfile(f *testing.F) {
	for _, file := range []string{"a slots=2\nb # c\n", "a:1", "a slots=2 max_slots=3", "\x00", "a\na\na slots=9"} {
		f.Add(file)
	}
	f.Fuzz(func(t *testing.T, file string) {
		hosts, err := ParseHostfile(strings.NewReader(file))
		if err != nil {
			return
		}
		again, err := ParseHosts(list(hosts))
		if err != nil || !slices.Equal(again, hosts) || len(hosts) == 0 {
			t.Errorf("%q: %v, and as a list %v, %v", file, hosts, again, err)
		}
	})
}

func TestParseHosts(t *testing.T) {
	want := []Host{{"a", 3}, {"b", 1}}
	if got, err := ParseHosts("a:2, b,a"); err != nil || !slices.Equal(got, want) {
		t.Errorf("%v, %v, want %v", got, err, want)
	}
	for _, list := range []string{"", "a,,b", "a:", "a:x", "a:-1", ":2", "a:1:2"} {
		if got, err := ParseHosts(list); err == nil {
			t.Errorf("%q: %v, want an error", list, got)
		}
	}
}

// script writes a program of the shell.
func script(t *testing.T, name, text string) (path string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), name)
	must.Do(t, os.WriteFile(path, []byte("#!/bin/sh\n"+text), 0o755))
	return path
}

func TestDiscover(t *testing.T) {
	known := []Host{{"w-0.job", 4}, {"w-1.job", 4}}
	path := script(t, "discover", "echo w-1.job\necho\necho new\necho other:2\n")
	want := []Host{{"w-1.job", 4}, {"new", 1}, {"other", 2}}
	if got, err := Discover(t.Context(), path, known); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%v, %v, want %v", got, err, want)
	}
	if got, err := Discover(t.Context(), script(t, "none", ""), known); err != nil || len(got) != 0 {
		t.Errorf("a script that prints nothing: %v, %v, want no hosts", got, err)
	}
	for text, want := range map[string]string{"echo a:b\n": `"b" slots`,
		"echo not today >&2; exit 3\n": "exit status 3: not today"} {
		if got, err := Discover(t.Context(), script(t, "bad", text), nil); err == nil || !strings.Contains(err.Error(),
			want) {
			t.Errorf("%q: %v, %v, want an error with %q", text, got, err, want)
		}
	}
}

func TestSlurm(t *testing.T) {
	scontrol := script(t, "scontrol", `[ "$*" = "show hostnames n[1-4]" ] || { echo "Invalid hostlist" >&2; exit 1; }
echo n1; echo n2; echo n3; echo n4
`)
	t.Setenv("PATH", filepath.Dir(scontrol)+":"+os.Getenv("PATH"))
	t.Setenv("SLURM_JOB_NODELIST", "n[1-4]")
	t.Setenv("SLURM_TASKS_PER_NODE", "2(x3),1")
	want := []Host{{"n1", 2}, {"n2", 2}, {"n3", 2}, {"n4", 1}}
	if got, err := Slurm(t.Context()); err != nil || !slices.Equal(got, want) || !InSlurm() {
		t.Errorf("%v, %v, want %v", got, err, want)
	}
	for _, tasks := range []string{"", "2", "2(x5)", "2(x3)", "2(x99999999999999999999)", "2(x-1)", "2(x4),1",
		"0(x4)"} {
		t.Setenv("SLURM_TASKS_PER_NODE", tasks)
		if got, err := Slurm(t.Context()); err == nil {
			t.Errorf("tasks %q: %v, want an error", tasks, got)
		}
	}
	t.Setenv("SLURM_JOB_NODELIST", "n[1")
	if _, err := Slurm(t.Context()); err == nil || !strings.Contains(err.Error(), "n[1") ||
		!strings.Contains(err.Error(), "Invalid hostlist") {
		t.Errorf("%v, want an error with the list and what scontrol says", err)
	}
	t.Setenv("SLURM_JOB_NODELIST", "")
	if _, err := Slurm(t.Context()); err == nil || InSlurm() {
		t.Errorf("%v, want an error where there is no allocation", err)
	}
}
