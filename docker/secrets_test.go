package docker

import (
	"bytes"
	"encoding/pem"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/shardbook/shardbook/internal/must"
)

// public are hosts that every build uses.
var public = []string{"proxy.golang.org", "sum.golang.org", "pypi.org", "files.pythonhosted.org", "deb.debian.org"}

// secretName matches names of environment variables with secret values.
var secretName = regexp.MustCompile(`(?i)token|secret|passw|credential|api_?key|private_?key`)

// private lists texts of this machine that must not be in an image: its folders, the proxies and package indexes that
// it uses, secrets in the environment, and certificates that only this machine trusts.
func private(t *testing.T, folders []string, theirs []byte) []string {
	t.Helper()
	var all []string
	for _, folder := range folders {
		all = append(all, filepath.Clean(folder)+"/")
	}
	settings := os.Environ()
	for name, value := range pipOptions() {
		settings = append(settings, name+"="+value)
	}
	said := must.Get(exec.Command("go", "env", "-json", "GOPROXY", "GOSUMDB", "GOMODCACHE", "GOCACHE").Output())(t)
	settings = append(settings, "go="+string(said))
	for _, setting := range settings {
		name, value, _ := strings.Cut(setting, "=")
		if secretName.MatchString(name) && len(value) >= 8 && !exists(value) {
			all = append(all, value)
		}
		for _, address := range regexp.MustCompile(`https?://[^\s"',|]+`).FindAllString(value, -1) {
			parsed, err := url.Parse(address)
			if err != nil || slices.Contains(public, parsed.Host) || name == "PWD" {
				continue
			}
			if strings.Contains(strings.ToLower(name), "proxy") || name == "go" ||
				strings.HasSuffix(name, "index-url") {
				all = append(all, parsed.Host)
			}
			if password, set := parsed.User.Password(); set {
				all = append(all, password)
			}
		}
	}
	for ours := hostCertificates(); ; {
		var block *pem.Block
		if block, ours = pem.Decode(ours); block == nil {
			break
		}
		text := pem.EncodeToMemory(block)
		if !bytes.Contains(theirs, text) {
			all = append(all, strings.Split(string(text), "\n")[5]) // a line of the certificate
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// contain lists the files below a folder that contain one of the texts.
func contain(folder string, texts []string) ([]string, error) {
	var wrong bytes.Buffer
	cmd := exec.Command("grep", "-rlaF", "--devices=skip", "-f", "-", folder)
	cmd.Stdin, cmd.Stderr = strings.NewReader(strings.Join(texts, "\n")), &wrong
	cmd.Env = append(os.Environ(), "LC_ALL=C")
	said, err := cmd.Output()
	if err != nil && cmd.ProcessState.ExitCode() != 1 { // 1: none
		return nil, fmt.Errorf("grep: %w: %s", err, wrong.String())
	}
	return strings.FieldsFunc(string(said), func(r rune) bool { return r == '\n' }), nil
}

func TestContain(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{"a/b": "\x00here is a secret-7 within\xff\n", "c": "here is none",
		"d": "here/is/a/path/of/mine"} {
		path := filepath.Join(dir, name)
		must.Do(t, os.MkdirAll(filepath.Dir(path), 0o755))
		must.Do(t, os.WriteFile(path, []byte(text), 0o644))
	}
	got, err := contain(dir, []string{"secret-7", "/path/of/"})
	slices.Sort(got)
	if want := []string{filepath.Join(dir, "a/b"), filepath.Join(dir, "d")}; err != nil || !slices.Equal(got, want) {
		t.Errorf("%q, %v, want %q", got, err, want)
	}
	if got, err := contain(dir, []string{"secret-8"}); err != nil || len(got) != 0 {
		t.Errorf("%q, %v, want nothing", got, err)
	}
}

func TestPrivate(t *testing.T) {
	t.Setenv("SOME_TOKEN", "a-token-for-this-test")
	t.Setenv("HTTPS_PROXY", "http://me:my-password@proxy.example:3128")
	t.Setenv("GOPROXY", "https://modules.example/go,https://proxy.golang.org")
	got := private(t, []string{"/some/folder"}, hostCertificates())
	for _, want := range []string{"a-token-for-this-test", "proxy.example:3128", "my-password", "modules.example",
		"/some/folder/"} {
		if !slices.Contains(got, want) {
			t.Errorf("%q is not in %q", want, got)
		}
	}
	if slices.Contains(got, "proxy.golang.org") {
		t.Errorf("the public proxy is in %q", got)
	}
}
