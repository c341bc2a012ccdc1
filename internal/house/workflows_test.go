package house

import (
	"go/ast"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// TestReadmeCommand checks that .ci/run runs only the README's test command, and that CI runs it: the quick tier for
// each change, and each night the full tier, the default in CI.
func TestReadmeCommand(t *testing.T) {
	const command = "go test -timeout 30m ./..."
	if !strings.Contains(read(t, "README.md"), "\n    "+command+"\n") {
		t.Error("README.md does not give the test command")
	}
	var commands []string
	for line := range strings.Lines(read(t, ".ci/run")) {
		line = strings.TrimSpace(line)
		if line != "" && line[0] != '#' && !strings.HasPrefix(line, "set ") && !strings.HasPrefix(line, "cd ") {
			commands = append(commands, line)
		}
	}
	if !slices.Equal(commands, []string{command}) {
		t.Errorf(".ci/run runs %q", commands)
	}
	for name, want := range map[string]string{"ci.yml": "SHARDBOOK_TEST=quick .ci/run", "nightly.yml": ".ci/run"} {
		if !strings.Contains(read(t, ".github/workflows/"+name), "\n      run: "+want+"\n") {
			t.Errorf("%s does not run %s", name, want)
		}
	}
}

var (
	uses     = regexp.MustCompile(`(?m)\buses: *(.+)$`)
	pinned   = regexp.MustCompile(`^[\w-]+/[\w/-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+$`)
	readOnly = regexp.MustCompile(`(?m)^permissions:\n  contents: read\n\S`)
	script   = regexp.MustCompile(`(?m)\.ci/\w+`)
)

// TestWorkflows checks that third-party actions are pinned by commit, since tags can move, that a workflow's token can
// only read, that its jobs have a time limit, and that the workflows run all scripts in .ci.
func TestWorkflows(t *testing.T) {
	var run []string
	for _, name := range tracked(t, ".github/workflows") {
		text := read(t, name)
		for _, found := range uses.FindAllStringSubmatch(text, -1) {
			if local, ok := strings.CutPrefix(found[1], "./"); ok {
				read(t, local)
			} else if !pinned.MatchString(found[1]) {
				t.Errorf("%s uses %s: want owner/name@COMMIT # vVERSION", name, found[1])
			}
		}
		if !readOnly.MatchString(text) || strings.Count(text, "permissions:") != 1 {
			t.Errorf("%s has other permissions than contents: read", name)
		}
		if strings.Contains(text, "secrets") {
			t.Errorf("%s uses secrets", name)
		}
		if jobs, limits := strings.Count(text, "runs-on:"), strings.Count(text, "timeout-minutes:"); jobs != limits {
			t.Errorf("%s has %d jobs and %d time limits", name, jobs, limits)
		}
		run = append(run, script.FindAllString(text, -1)...)
	}
	scripts := tracked(t, ".ci")
	slices.Sort(run)
	slices.Sort(scripts)
	if run = slices.Compact(run); !slices.Equal(run, scripts) {
		t.Errorf("workflows run %q, the scripts are %q", run, scripts)
	}
	for _, name := range scripts {
		if info, err := os.Stat(filepath.Join(root, name)); err == nil && info.Mode()&0o111 == 0 {
			t.Errorf("%s cannot be executed", name)
		}
	}
}

// TestContainer checks that CI's container has the packages that tests would otherwise install.
func TestContainer(t *testing.T) {
	installs := regexp.MustCompile(`\bInstall\(("[a-z0-9-]+"(?:, "[a-z0-9-]+")*)\)`)
	has := strings.Fields(read(t, ".github/workflows/container.yml"))
	var wanted []string
	for _, name := range tracked(t, ":(glob)**/*.go") {
		for _, call := range installs.FindAllStringSubmatch(read(t, name), -1) {
			for _, quoted := range strings.Split(call[1], ", ") {
				wanted = append(wanted, strings.Trim(quoted, `"`))
			}
		}
	}
	if len(wanted) == 0 {
		t.Error("no test installs a package")
	}
	for _, name := range wanted {
		if !slices.Contains(has, name) {
			t.Errorf("container.yml does not install %s", name)
		}
	}
}

// TestRace checks that .ci/race covers all packages with goroutines or synchronization.
func TestRace(t *testing.T) {
	watched := strings.Fields(output(t, ".ci/race", "-list"))
	for _, name := range tracked(t, ":(glob)**/*.go", ":(exclude,glob)**/*_test.go") {
		if concurrent(parsed(t, name)) && !slices.Contains(watched, "./"+path.Dir(name)) {
			t.Errorf("%s has goroutines, and .ci/race leaves its package out", name)
		}
	}
}

func concurrent(file *ast.File) bool {
	if slices.ContainsFunc(file.Imports, func(i *ast.ImportSpec) bool {
		return i.Path.Value == `"sync"` || i.Path.Value == `"sync/atomic"`
	}) {
		return true
	}
	found := false
	ast.Inspect(file, func(node ast.Node) bool {
		_, started := node.(*ast.GoStmt)
		found = found || started
		return !found
	})
	return found
}
