package docker

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/shardbook/shardbook/internal/must"
)

// Paths in a container during the build. They are mounted only for the build, and are in no layer.
const (
	certificates = "/etc/ssl/certs/ca-certificates.crt"
	pipSettings  = "/etc/pip.conf"
	goSettings   = "/usr/local/go/go.env"
	goModules    = "/mnt"
)

// build builds a target of this working tree's Dockerfile, on images of Debian and Go that it makes on this machine.
func (s *store) build(target string) (image string) {
	s.t.Helper()
	failed := make(chan error, 2)
	go func() { failed <- s.image("localhost/base", s.debian) }()
	go func() { failed <- s.image("localhost/golang", s.golang) }()
	for range 2 {
		must.Do(s.t, <-failed)
	}
	image = "localhost/shardbook-" + target
	args := []string{"build", "--network", "host", "--pull-never", "--format", "docker", "--layers=false", "--target",
		target, "--build-arg", "BASE_IMAGE=localhost/base", "--build-arg", "GO_IMAGE=localhost/golang"}
	for from, to := range s.mounts() {
		args = append(args, "--volume", from+":"+to+":ro")
	}
	s.must(append(args, "--tag", image, "--file", "Dockerfile", "..")...)
	return image
}

// debian fills an image's root with a minimal Debian, like the one of the Dockerfile.
func (s *store) debian(root string) error {
	cmd := exec.CommandContext(s.t.Context(), "mmdebstrap", "--mode=root", "--format=directory", "--variant=minbase",
		"--include=ca-certificates", "--dpkgopt=force-unsafe-io", "--dpkgopt=path-exclude=/usr/share/doc/*",
		"--dpkgopt=path-exclude=/usr/share/locale/*",
		"--dpkgopt=path-exclude=/usr/share/man/*", "bookworm", root, "http://deb.debian.org/debian")
	if output, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("mmdebstrap: %w: %s", err, output)
	}
	return os.WriteFile(filepath.Join(root, pipSettings), nil, 0o644) // a mount would create it otherwise
}

// golang fills an image's root with the Go that runs the test.
func (s *store) golang(root string) error {
	said, err := exec.Command("go", "env", "GOROOT").Output()
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Join(root, "usr/local"), 0o755); err != nil {
		return err
	}
	output, err := exec.Command("cp", "-a", strings.TrimSpace(string(said)),
		filepath.Join(root, "usr/local/go")).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%w: %s", err, output)
	}
	return nil
}

// mounts are what the build needs to reach package registries from this machine: its settings, its certificates, and
// the Go modules that it already has.
func (s *store) mounts() map[string]string {
	s.t.Helper()
	mounts := map[string]string{}
	write := func(to string, text []byte) {
		from := filepath.Join(s.dir, "tmp", filepath.Base(to))
		must.Do(s.t, os.WriteFile(from, text, 0o644))
		mounts[from] = to
	}
	pip := "[global]\n"
	if text := hostCertificates(); text != nil {
		write(certificates, text)
		pip += "cert = " + certificates + "\n"
	}
	for name, value := range pipOptions() {
		pip += name + " = " + value + "\n"
	}
	write(pipSettings, []byte(pip))

	said, err := exec.Command("go", "env", "GOPROXY", "GOSUMDB", "GONOSUMDB", "GOMODCACHE").Output()
	must.Do(s.t, err)
	goEnv := strings.Split(string(said), "\n")
	if modules := filepath.Join(goEnv[3], "cache/download"); exists(modules) {
		mounts[modules] = goModules
		goEnv[0] = "file://" + goModules + "," + goEnv[0]
	}
	write(goSettings, fmt.Appendf(nil, "GOPROXY=%s\nGOSUMDB=%s\nGONOSUMDB=%s\nGOTOOLCHAIN=local\n", goEnv[0], goEnv[1],
		goEnv[2]))
	return mounts
}

// hostCertificates are the certificates that this machine trusts, or nil if they are not in a usual place.
func hostCertificates() []byte {
	for _, path := range []string{os.Getenv("SSL_CERT_FILE"), certificates} {
		if text, err := os.ReadFile(path); err == nil {
			return text
		}
	}
	return nil
}

// pipOption is a line of `pip config list`, such as global.timeout='180'.
var pipOption = regexp.MustCompile(`(?m)^.+\.(index-url|extra-index-url|trusted-host|proxy|timeout|retries)='(.*)'$`)

// pipOptions are this machine's pip settings for package indexes and proxies.
func pipOptions() map[string]string {
	said, _ := exec.Command("python3", "-m", "pip", "config", "list").Output() // without pip there are no settings
	options := map[string]string{}
	for _, found := range pipOption.FindAllSubmatch(said, -1) {
		options[string(found[1])] = string(bytes.ReplaceAll(found[2], []byte(`\n`), []byte(" ")))
	}
	return options
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}
