package docker

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/shardbook/shardbook/internal/must"
)

// settings returns the ssh options that the Dockerfile writes into a file by printf.
func settings(t *testing.T, file string) map[string]string {
	t.Helper()
	written := regexp.MustCompile(`printf '([^']*)' >` +
		regexp.QuoteMeta(file)).FindStringSubmatch(read(t, "Dockerfile"))
	if written == nil {
		t.Fatalf("the Dockerfile does not write %s", file)
	}
	options := map[string]string{}
	for line := range strings.SplitSeq(strings.ReplaceAll(written[1], `\n`, "\n"), "\n") {
		name, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		if options[name] != "" {
			t.Errorf("%s sets %s twice", file, name)
		}
		options[name] = value
	}
	return options
}

// Pods authenticate each other only with the key that the operator mounts in all of them.
func TestSSH(t *testing.T) {
	mount := regexp.MustCompile(`(?m)^  sshAuthMountPath: (\S+)$`).FindStringSubmatch(read(t, "mpijob.yaml"))
	if mount == nil {
		t.Fatal("mpijob.yaml does not say where the key is mounted")
	}
	client, server := settings(t, "/etc/ssh/ssh_config.d/mpi.conf"), settings(t, "/home/mpiuser/.sshd_config")
	for _, c := range []struct{ whose, option, got, want string }{
		{"client", "StrictHostKeyChecking", client["StrictHostKeyChecking"], "yes"},
		{"client", "Port", client["Port"], server["Port"]},
		{"client", "KnownHostsCommand", client["KnownHostsCommand"], `/bin/sed "s/^/* /" ` + mount[1] + "/id_rsa.pub"},
		{"server", "HostKey", server["HostKey"], mount[1] + "/id_rsa"}, // the client has the public key
		{"server", "AuthorizedKeysFile", server["AuthorizedKeysFile"], "none"},
		{"server", "AuthorizedKeysCommand", server["AuthorizedKeysCommand"],
			"/bin/cat " + mount[1] + "/authorized_keys"},
		{"server", "AuthorizedKeysCommandUser", server["AuthorizedKeysCommandUser"], "mpiuser"},
		{"server", "AuthenticationMethods", server["AuthenticationMethods"], "publickey"},
		{"server", "StrictModes", server["StrictModes"], ""}, // the default, yes
	} {
		if c.got != c.want {
			t.Errorf("the %s's %s is %q, want %q", c.whose, c.option, c.got, c.want)
		}
	}
	// The command turns a public key into a line of known hosts, for all hosts.
	key := filepath.Join(t.TempDir(), "id_rsa.pub")
	must.Do(t, os.WriteFile(key, []byte("ecdsa-sha2-nistp521 AAAA\n"), 0o644))
	line := strings.Replace(client["KnownHostsCommand"], mount[1]+"/id_rsa.pub", key, 1)
	if got, err := exec.Command("sh", "-c", line).Output(); string(got) != "* ecdsa-sha2-nistp521 AAAA\n" ||
		err != nil {
		t.Errorf("%s prints %q, %v", line, got, err)
	}
}
