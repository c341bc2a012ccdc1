package hosts

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// family begins the names of all namespaces that tests make; the process's number follows.
const family = "shardbook-test-"

// Where ip keeps namespaces, and the files that they have instead of those in /etc.
const (
	namespaces = "/run/netns"
	etcs       = "/etc/netns"
)

// remove ends what runs in the namespaces whose names begin with a prefix, and removes them. It goes on where something
// fails: what is left is removed by the next test.
func remove(prefix string) {
	found, _ := filepath.Glob(filepath.Join(namespaces, prefix+"-*"))
	for _, path := range found {
		name := filepath.Base(path)
		end(name)
		ip("netns del " + name)
	}
	files, _ := filepath.Glob(filepath.Join(etcs, prefix+"-*"))
	for _, path := range files {
		os.RemoveAll(path)
	}
}

// end kills the processes in a namespace, and those that they start meanwhile.
func end(name string) {
	for range 100 {
		running := pids(name)
		if len(running) == 0 {
			return
		}
		for _, pid := range running {
			if n, err := strconv.Atoi(pid); err == nil {
				syscall.Kill(n, syscall.SIGKILL)
			}
		}
		time.Sleep(10 * time.Millisecond)
	}
}

var made = regexp.MustCompile(`^` + family + `(\d+)-`)

// removeStale removes what tests left whose process is dead: one that was killed cleans nothing up.
func removeStale() {
	for _, folder := range []string{namespaces, etcs} {
		entries, _ := os.ReadDir(folder)
		for _, entry := range entries {
			name := made.FindStringSubmatch(entry.Name())
			if name == nil {
				continue
			}
			if pid, err := strconv.Atoi(name[1]); err == nil && syscall.Kill(pid, 0) == syscall.ESRCH {
				remove(family + name[1])
			}
		}
	}
}

// pids are the processes in a namespace.
func pids(name string) []string {
	output, _ := exec.Command("ip", "netns", "pids", name).Output()
	return strings.Fields(string(output))
}

// ip runs ip(8) with a line of arguments.
func ip(line string) error {
	if output, err := exec.Command("ip", strings.Fields(line)...).CombinedOutput(); err != nil {
		return fmt.Errorf("ip %s: %w: %s", line, err, output)
	}
	return nil
}
