package docker

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/shardbook/shardbook/internal/must"
)

const (
	home   = "/home/jovyan"
	mostGB = 3.0 // of the image's layers, unpacked
)

// TestImage builds the image and uses it as its users do: as its own user, without a network.
func TestImage(t *testing.T) {
	s := newStore(t)
	image := s.build("lab")
	t.Run("size", func(t *testing.T) { checkSize(t, s, image) })
	t.Run("private", func(t *testing.T) { checkPrivate(t, s, image) })
	said := s.inspect(image)
	container := s.must("from", image)
	t.Run("writable", func(t *testing.T) { checkWritable(t, s, container) })
	t.Run("notebooks", func(t *testing.T) { checkNotebooks(t, s, container) })
	t.Run("server", func(t *testing.T) { checkServer(t, s, container, said) })
	t.Run("binder", func(t *testing.T) { checkBinder(t, s, container, said) })
	t.Run("cuda", func(t *testing.T) { checkCUDA(t, s, container) })
}

// checkCUDA runs what the target cuda adds to lab, and uses the result without a GPU.
func checkCUDA(t *testing.T, s *store, container string) {
	_, stage, found := strings.Cut(read(t, "Dockerfile"), "\nFROM lab AS cuda\n")
	stage, _, _ = strings.Cut(stage, "\n\n")
	commands := regexp.MustCompile(`(?m)^RUN (.+)$`).FindAllStringSubmatch(stage, -1)
	if !found || len(commands) != strings.Count(stage, "\n")+1 {
		t.Fatalf("the target cuda is not RUN commands only: %q", stage)
	}
	args := []string{"run", "--isolation", "chroot", "--network", "host"}
	for from, to := range s.mounts() {
		args = append(args, "--volume", from+":"+to+":ro")
	}
	for _, command := range commands {
		s.must(append(args, container, "--", "sh", "-c", command[1])...)
	}
	said := output(t, s, container, "shardbook", "doctor")
	for _, want := range []string{"ok       CUDA libraries", "no NVIDIA GPU", "8 devices, the first: cpu:0"} {
		if !strings.Contains(said, want) {
			t.Errorf("the doctor does not say %q: %s", want, said)
		}
	}
}

// output runs a command in a container and returns its standard output.
func output(t *testing.T, s *store, container string, command ...string) string {
	t.Helper()
	var wrong bytes.Buffer
	cmd := s.run(container, command...)
	cmd.Stderr = &wrong
	said, err := cmd.Output()
	if err != nil {
		t.Fatalf("%q: %v: %s%s", command, err, said, wrong.Bytes())
	}
	return string(said)
}

// checkSize checks the sum of the image's layers.
func checkSize(t *testing.T, s *store, image string) {
	said := s.must("images", "--format", "{{.Size}}", image)
	var size float64
	var unit string
	if _, err := fmt.Sscanf(said, "%f %s", &size, &unit); err != nil || unit != "GB" {
		t.Fatalf("the image's size is %q, %v", said, err)
	}
	t.Logf("the image has %s", said)
	if size > mostGB {
		t.Errorf("the image has %s, want at most %v", said, mostGB)
	}
}

// checkPrivate looks for private texts of this machine in all files of all layers and in the image's metadata.
func checkPrivate(t *testing.T, s *store, image string) {
	root := must.Get(filepath.Abs(".."))(t)
	goEnv := must.Get(exec.Command("go", "env", "GOMODCACHE", "GOCACHE").Output())(t)
	container := s.must("from", image)
	files := s.must("mount", container)
	theirs := must.Get(os.ReadFile(filepath.Join(files, certificates)))(t)
	texts := private(t, append(strings.Fields(string(goEnv)), root, s.dir), theirs)
	t.Logf("%d texts that must not be in the image", len(texts))
	said := s.inspect(image)
	known := []string{"GOTOOLCHAIN", "HOME", "LANG", "NB_UID", "PATH", "SHARDBOOK_ROOT", "SHELL", "TMPDIR", "USER"}
	for _, entry := range said.Env {
		if name, _, _ := strings.Cut(entry, "="); !slices.Contains(known, name) {
			t.Errorf("the image sets %s", entry)
		}
	}
	// Files that a running server or a user writes, which all containers would then share.
	for _, name := range []string{".local/share/jupyter/runtime", ".local/share/jupyter/notebook_secret", ".jupyter",
		".netrc", ".ssh", ".config/go/env", ".config/pip", ".cache/pip", "shardbook/.git", "shardbook/docker"} {
		if exists(filepath.Join(files, home, name)) {
			t.Errorf("%s/%s is in the image", home, name)
		}
	}
	s.must("rm", container)
	for _, folder := range []string{s.driver, s.driver + "-images"} { // the files of all layers, and metadata
		found := must.Get(contain(filepath.Join(s.dir, "store", folder), texts))(t)
		for _, path := range found {
			t.Errorf("%s has a private text of this machine", path)
		}
	}
}

// checkWritable looks for paths outside of the user's home that the user can write.
func checkWritable(t *testing.T, s *store, container string) {
	const script = `find / \( -path /proc -o -path /sys -o -path /dev -o -path "$HOME/*" \) -prune -o ` +
		`! -type l -writable -print 2>/dev/null; id -u; echo "$TMPDIR"; go env GOCACHE`
	got := output(t, s, container, "sh", "-c", script)
	if want := home + "\n1000\n" + home + "/tmp\n" + home + "/.cache/go-build\n"; got != want {
		t.Errorf("writable paths, user id, TMPDIR and GOCACHE are\n%s\nwant\n%s", got, want)
	}
}

// ran is an event of kernel/headless.py: a code cell that ran.
type ran struct {
	Event, Why string
	Cell       int
	Seconds    float64
}

// runNotebook runs a notebook in a container and returns how long each of its code cells took.
func runNotebook(t *testing.T, s *store, container, name string) []float64 {
	t.Helper()
	cmd := s.run(container, "shardbook", "exec", "python", "kernel/headless.py")
	cmd.Stdin = strings.NewReader(fmt.Sprintf(
		`{"notebook": "notebooks/%s.ipynb", "ipynb": "", "html": "", "timeout": 600}`, name))
	said, err := cmd.CombinedOutput()
	var cells []float64
	for lines := bufio.NewScanner(bytes.NewReader(said)); lines.Scan(); {
		var cell ran
		if json.Unmarshal(lines.Bytes(), &cell) != nil {
			continue // other output of Python
		}
		if cell.Event == "failed" {
			t.Errorf("%s, cell %d: %s", name, cell.Cell, cell.Why)
		} else if cell.Event == "ran" {
			cells = append(cells, cell.Seconds)
		}
	}
	if err != nil || len(cells) < 5 {
		t.Fatalf("%s: %d cells have run, %v: %s", name, len(cells), err, said)
	}
	return cells
}

// checkNotebooks runs notebooks, and checks that their first cell compiles nothing, in an image of any age.
func checkNotebooks(t *testing.T, s *store, container string) {
	old := output(t, s, container, "sh", "-c",
		`find "$HOME/.cache/go-build" -name '*-[ad]' ! -newermt 2037-12-31 | head -3`)
	if old != "" {
		t.Errorf("in an image that is a week old Go would delete its build cache:\n%s", old)
	}
	first := runNotebook(t, s, container, "00-devices")
	runNotebook(t, s, container, "02-collectives")
	again := runNotebook(t, s, container, "00-devices")
	ratio := first[0] / again[0]
	t.Logf("the first cell takes %.1f times as long as when it is run again", ratio)
	if ratio > 5 { // about 1; without a build cache more than 20
		t.Errorf("the first cell takes %.1f times as long as when it is run again, want at most 5", ratio)
	}
}

var printedToken = regexp.MustCompile(`\?token=([0-9a-f]{20,})`)

// checkServer starts the image's command, and checks that the server requires the token that it prints.
func checkServer(t *testing.T, s *store, container string, said config) {
	log := filepath.Join(s.dir, "tmp", "server.log")
	file := must.Get(os.Create(log))(t)
	defer file.Close()
	health := func() error { return s.run(container, said.Healthcheck.Test[1:]...).Run() }
	if len(said.Healthcheck.Test) < 2 || said.Healthcheck.Test[0] != "CMD" {
		t.Fatalf("the health check is %q", said.Healthcheck.Test)
	}
	if health() == nil {
		t.Error("the health check passes without a server")
	}
	server := s.run(container, slices.Concat(said.Entrypoint, said.Cmd)...)
	server.Stdout, server.Stderr = file, file
	must.Do(t, server.Start())
	ended := make(chan error, 1)
	go func() { ended <- server.Wait() }()
	token := ""
	for begun := time.Now(); token == ""; time.Sleep(200 * time.Millisecond) {
		text := must.Get(os.ReadFile(log))(t)
		if found := printedToken.FindSubmatch(text); found != nil {
			token = string(found[1])
		}
		if len(ended) > 0 || time.Since(begun) > 2*time.Minute {
			t.Fatalf("the server prints no address with a token: %s", text)
		}
	}
	if err := health(); err != nil {
		t.Errorf("the server runs, and the health check fails: %v", err)
	}
	for path, want := range map[string]string{
		"/lab":                                      "302 /login?next=%2Flab",
		"/api/contents":                             "403 ",
		"/api/contents?token=" + token[1:]:          "403 ",
		"/api/terminals?token=":                     "403 ",
		"/api/kernels":                              "403 ",
		"/api/contents?token=" + token:              "200 ",
		"/lab/tree/00-devices.ipynb?token=" + token: "200 ",
	} {
		const script = `import http.client, sys
c = http.client.HTTPConnection("127.0.0.1", 8888, timeout=60)
c.request("GET", sys.argv[1])
r = c.getresponse()
print(r.status, r.getheader("Location", ""))`
		if got := strings.TrimSuffix(output(t, s, container, "python3", "-c", script, path), "\n"); got != want {
			t.Errorf("%s: %s, want %s", path, got, want)
		}
	}
	const given = `import os
os.environ["JUPYTER_TOKEN"] = "mine"
from jupyter_server.auth import IdentityProvider
print(IdentityProvider().token)`
	if got := output(t, s, container, slices.Concat(said.Entrypoint,
		[]string{"python", "-c", given})...); got != "mine\n" {
		t.Errorf("with JUPYTER_TOKEN=mine the server's token is %q", got)
	}
}

// checkBinder starts JupyterLab as BinderHub does: through the entry point, with another command than the image's.
func checkBinder(t *testing.T, s *store, container string, said config) {
	line := slices.Concat(said.Entrypoint, []string{"python3", "-c",
		"import os, sys, jupyterlab; os.execvp('jupyter-lab', sys.argv)", "--version"})
	if major, err := strconv.Atoi(strings.Split(output(t, s, container, line...), ".")[0]); err != nil || major < 3 {
		t.Errorf("version %d of jupyter-lab, %v", major, err)
	}
}
