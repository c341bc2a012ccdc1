// Package docker is the container image with JupyterLab and the notebooks. Its tests build it, with no Docker daemon, and look
// into it.
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
	"github.com/shardbook/shardbook/internal/systest"
)

// store keeps images and containers in a folder that goes with the test.
type store struct {
	t       *testing.T
	dir     string
	driver  string
	network *hosts.Hosts // what containers run in: one host with no way out
}

// storeBytes is what images, layers and the containers made of them take at their peak.
const storeBytes = 12e9

// newStore makes an empty store. It skips the test where images cannot be built.
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
	if err := os.Mkdir(filepath.Join(s.dir, "tmp"), 0o700); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.remove)
	if s.command("info").Run() != nil {
		s.driver = "vfs" // which copies each layer, but works on whatever the folder lies on
	}
	s.network = hosts.New(t, 1)
	return s
}

// line is a command line of buildah on the store.
func (s *store) line(args ...string) []string {
	return append([]string{"buildah", "--root", filepath.Join(s.dir, "store"), "--runroot", filepath.Join(s.dir, "run"),
		"--storage-driver", s.driver}, args...)
}

// command runs buildah on the store, with the test's environment and network.
func (s *store) command(args ...string) *exec.Cmd {
	line := s.line(args...)
	cmd := exec.CommandContext(s.t.Context(), line[0], line[1:]...)
	cmd.Env = s.environ()
	return cmd
}

func (s *store) environ() []string {
	return append(os.Environ(), "TMPDIR="+filepath.Join(s.dir, "tmp"), "BUILDAH_ISOLATION=chroot")
}

// do runs buildah and returns what it prints.
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

// must is do where an error ends the test.
func (s *store) must(args ...string) string {
	s.t.Helper()
	said, err := s.do(args...)
	if err != nil {
		s.t.Fatal(err)
	}
	return said
}

// image makes an image of one layer, which fill puts files into.
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

// config is what an image says of itself.
type config struct {
	User, WorkingDir     string
	Env, Entrypoint, Cmd []string
	Labels               map[string]string
	Healthcheck          struct{ Test []string }
}

// inspect returns an image's configuration.
func (s *store) inspect(image string) config {
	s.t.Helper()
	text := s.must("inspect", "--type", "image", image)
	var all struct{ Docker struct{ Config config } }
	if err := json.Unmarshal([]byte(text), &all); err != nil {
		s.t.Fatal(err)
	}
	return all.Docker.Config
}

// run is a command that runs in a container as its image's user, with the image's environment and no network but a loopback.
func (s *store) run(container string, command ...string) *exec.Cmd {
	line := s.line(slices.Concat([]string{"run", "--isolation", "chroot", "--network", "host", container, "--"}, command)...)
	cmd := s.network.Command(0, line[0], line[1:]...)
	cmd.Env = s.environ()
	return cmd
}

// remove takes away whatever is still mounted, so that the folder can be removed.
func (s *store) remove() {
	s.t.Helper()
	exec.Command(s.line()[0], s.line("rm", "--all")...).Run()
	table, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		s.t.Error(err)
	}
	lines := strings.Split(string(table), "\n")
	slices.Reverse(lines) // what was mounted last comes first
	for _, line := range lines {
		fields := strings.Fields(line)
		if len(fields) < 5 || !strings.HasPrefix(fields[4], s.dir+"/") {
			continue
		}
		if err := syscall.Unmount(fields[4], syscall.MNT_DETACH); err != nil {
			s.t.Errorf("%s stays mounted: %v", fields[4], err)
		}
	}
}
