//go:build !resident

package xla

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"
)

// check runs the canaries. All of them take a third of a second, which a notebook would pay in every cell. So all run
// once for a plugin file on a processor, and with GPUs of a model and a driver, with the same XLA flags and number of
// devices, and after that only those in the type that has been wrong before.
func (b *Backend) check(c config) error {
	seen := filepath.Join(c.cacheDir, "trusted", b.trustKey())
	types := canaryTypes
	if _, err := os.Stat(seen); err == nil && !c.allCanaries {
		types = canaryTypes[:1]
	}
	var err error
	if b.info.Canaries, err = runCanaries(b, types, c.spoil); err != nil {
		os.Remove(seen)
		return err
	}
	if len(types) == len(canaryTypes) && os.MkdirAll(filepath.Dir(seen), 0o755) == nil {
		// If this cannot be written, all run again next time.
		os.WriteFile(seen, []byte(b.info.Plugin+"\n"), 0o644)
	}
	return nil
}

// trustKey is a hash of everything that the canaries' results depend on. The collectives' programs depend on the number
// of devices.
func (b *Backend) trustKey() string {
	return digest(b.codeKey(), fmt.Sprint(b.share))
}

// codeKey is a hash of everything that XLA's machine code for a program depends on.
func (b *Backend) codeKey() string {
	i := b.info
	parts := []string{i.Plugin, identity(i.Plugin), i.API, string(i.Platform), os.Getenv("XLA_FLAGS"), processor(),
		b.owner.driver.String()}
	for _, gpu := range b.owner.driver.GPUs {
		parts = append(parts, gpu.Name)
	}
	return digest(parts...)
}

func digest(parts ...string) string {
	sum := sha256.Sum256(fmt.Appendf(nil, "%q", parts))
	return hex.EncodeToString(sum[:])[:16]
}

// identity returns a text that changes when the file does; "" if there is no file. Hashing 250 MB would take longer
// than all canaries. The kernel sets the change time (ctime) at each write, and no program can set it back, unlike the
// modification time; a file that is moved here has another inode.
func identity(path string) string {
	var file unix.Stat_t
	if unix.Stat(path, &file) != nil {
		return ""
	}
	return fmt.Sprint(file.Ino, file.Size, file.Mtim, file.Ctim)
}

// processor describes the CPU and its features, for which XLA compiles.
func processor() string {
	text, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		return runtime.GOARCH
	}
	first, _, _ := strings.Cut(string(text), "\n\n")
	var lines []string
	for line := range strings.Lines(first) {
		name, _, _ := strings.Cut(line, ":")
		switch strings.TrimSpace(name) {
		case "model name", "flags", "CPU part", "Features":
			lines = append(lines, line)
		}
	}
	return strings.Join(lines, "")
}
