package systest

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/shardbook/shardbook/internal/cache"
)

// Omission is something that a run of the tests left out.
type Omission struct {
	Package string // its folder in the repository
	Test    string
	Why     Reason
	What    string
}

// go test does not show the output of a package's tests if they pass. So each package writes its omissions into a file,
// which its next run replaces, and package tests, which runs last, prints them.

// Records is the folder of these files, for this checkout and this tier.
func Records() (string, error) {
	root, err := cache.Dir("")
	if err != nil {
		return "", err
	}
	checkout, _, err := where()
	if err != nil {
		return "", err
	}
	tier := "quick"
	if Full() {
		tier = "full"
	}
	return filepath.Join(root, "tests", strings.ReplaceAll(checkout, string(filepath.Separator), "%"), tier), nil
}

// where returns the repository's folder, and the path below it of the test's package, in whose folder go test starts
// the test.
func where() (checkout, at string, err error) {
	started, err := startedIn()
	if err != nil {
		return "", "", err
	}
	for checkout = started; ; checkout = filepath.Dir(checkout) {
		if _, err := os.Stat(filepath.Join(checkout, "go.mod")); err == nil {
			at, err = filepath.Rel(checkout, started)
			return checkout, at, err
		}
		if checkout == filepath.Dir(checkout) {
			return "", "", fmt.Errorf("no go.mod above %s", started)
		}
	}
}

// startedIn is the folder in which the process was started.
var startedIn = sync.OnceValues(os.Getwd)

func init() {
	startedIn()
	if !testing.Testing() || !startedByGo() || partial(os.Args[1:]) {
		return
	}
	if file, err := recordOf(); err == nil {
		os.Remove(file)
	}
}

// partial reports whether a test binary was told to run some tests only.
func partial(args []string) bool {
	return slices.ContainsFunc(args, func(arg string) bool {
		for _, flag := range []string{"-test.run=", "-test.skip=", "-test.list=", "-test.bench=", "-test.fuzz="} {
			if value, ok := strings.CutPrefix(arg, flag); ok && value != "" {
				return true
			}
		}
		return false
	})
}

// startedByGo reports whether go test started this process, and not a test.
func startedByGo() bool {
	name, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", os.Getppid()))
	return err != nil || filepath.Base(name) == "go" // without /proc: assume so
}

func recordOf() (string, error) {
	folder, err := Records()
	if err != nil {
		return "", err
	}
	_, at, err := where()
	return filepath.Join(folder, strings.ReplaceAll(at, string(filepath.Separator), "%")+".jsonl"), err
}

var noting sync.Mutex

// note adds a line to the package's file. If that fails, the test goes on.
func note(t testing.TB, why Reason, what string) {
	t.Helper()
	noting.Lock()
	defer noting.Unlock()
	path, err := recordOf()
	if err != nil {
		return
	}
	_, at, _ := where()
	line, err := json.Marshal(Omission{at, t.Name(), why, what})
	if err != nil || os.MkdirAll(filepath.Dir(path), 0o755) != nil {
		return
	}
	file, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return
	}
	defer file.Close()
	file.Write(append(line, '\n'))
}
