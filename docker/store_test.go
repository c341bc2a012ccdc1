// Package docker is the container image with JupyterLab and the notebooks. Its tests build and inspect it without a
// Docker daemon.
package docker

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/shardbook/shardbook/internal/cache"
	"github.com/shardbook/shardbook/internal/hosts"
	"github.com/shardbook/shardbook/internal/must"
	"github.com/shardbook/shardbook/internal/systest"
)

// store holds images and containers in a temporary folder of the test.
type store struct {
	t       *testing.T
	dir     string
	driver  string
	network *hosts.Hosts // of the containers: one host without a way out
}

// storeBytes is the largest size of the store.
const storeBytes = 18e9

// newStore creates an empty store. It skips the test where images cannot be built.
func newStore(t *testing.T) *store {
	t.Helper()
	systest.FullOnly(t, "the image, built and used")
	if os.Geteuid() != 0 {
		systest.Skip(t, systest.NotRoot, "only root can build an image without a Docker daemon")
	}
	s := &store{t: t, dir: t.TempDir(), driver: "overlay"}
	if err := cache.Usable(s.dir, storeBytes); err != nil {
		systest.Skip(t, systest.System, err)
	}
	for _, tool := range []string{"buildah", "mmdebstrap"} {
		if _, err := exec.LookPath(tool); err == nil {
			continue
		}
		if err := systest.Install("buildah", "mmdebstrap", "debian-archive-keyring"); err != nil {
			systest.Skip(t, systest.System, err)
		}
	}
	must.Do(t, os.Mkdir(filepath.Join(s.dir, "tmp"), 0o700))
	t.Cleanup(s.remove)
	if s.command("info").Run() != nil {
		s.driver = "vfs" // it copies each layer, but works on every file system
	}
	s.network = hosts.New(t, 1)
	return s
}

// line is a command line of buildah for the store.
func (s *store) line(args ...string) []string {
	return append([]string{"buildah", "--root", filepath.Join(s.dir, "store"), "--runroot", filepath.Join(s.dir, "run"),
		"--storage-driver", s.driver}, args...)
}

// command returns a command of buildah with the test's environment and network.
func (s *store) command(args ...string) *exec.Cmd {
	line := s.line(args...)
	cmd := exec.CommandContext(s.t.Context(), line[0], line[1:]...)
	cmd.Env = s.environ()
	return cmd
}

func (s *store) environ() []string {
	return append(os.Environ(), "TMPDIR="+filepath.Join(s.dir, "tmp"), "BUILDAH_ISOLATION=chroot")
}

// do runs buildah and returns its output.
func (s *store) do(args ...string) (string, error) {
	var said, wrong bytes.Buffer
	cmd := s.command(args...)
	cmd.Stdout, cmd.Stderr = &said, &wrong
	if err := cmd.Run(); err != nil {
		all := said.String() + wrong.String()
		return "", fmt.Errorf("buildah %s: %w: …%s", args[0], err, all[max(0, len(all)-3000):])
	}
	return strings.TrimSpace(said.String()), nil
}

// must is do, and fails the test on an error.
func (s *store) must(args ...string) string {
	s.t.Helper()
	said, err := s.do(args...)
	must.Do(s.t, err)
	return said
}

// image creates an image of one layer with the files that fill writes.
func (s *store) image(name string, fill func(root string) error) error {
	container, err := s.do("from", "scratch")
	if err != nil {
		return err
	}
	root, err := s.do("mount", container)
	if err != nil {
		return err
	}
	if err := fill(root); err != nil {
		return err
	}
	_, err = s.do("commit", "--quiet", "--rm", container, name)
	return err
}

// config is an image's configuration.
type config struct {
	User, WorkingDir     string
	Env, Entrypoint, Cmd []string
	Labels               map[string]string
	Healthcheck          struct{ Test []string }
}

func (s *store) inspect(image string) config {
	s.t.Helper()
	text := s.must("inspect", "--type", "image", image)
	var all struct{ Docker struct{ Config config } }
	must.Do(s.t, json.Unmarshal([]byte(text), &all))
	return all.Docker.Config
}

// run returns a command in a container, as the image's user, with the image's environment and only a loopback network.
func (s *store) run(container string, command ...string) *exec.Cmd {
	line := s.line(slices.Concat([]string{"run", "--isolation", "chroot", "--network", "host", container, "--"},
		command)...)
	cmd := s.network.Command(0, line[0], line[1:]...)
	cmd.Env = s.environ()
	return cmd
}

// remove unmounts everything in the folder, so that it can be deleted.
func (s *store) remove() {
	s.t.Helper()
	exec.Command(s.line()[0], s.line("rm", "--all")...).Run()
	table, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		s.t.Error(err)
	}
	lines := strings.Split(string(table), "\n")
	slices.Reverse(lines) // the last mount first
	for _, line := range lines {
		fields := strings.Fields(line)
		if len(fields) < 5 || !strings.HasPrefix(fields[4], s.dir+"/") {
			continue
		}
		if err := syscall.Unmount(fields[4], syscall.MNT_DETACH); err != nil {
			s.t.Errorf("%s is still mounted: %v", fields[4], err)
		}
	}
}
