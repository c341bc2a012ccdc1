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

// check runs the canaries. All of them take a third of a second, which a notebook
// would pay in every cell, so the whole set runs once for a plugin's file on a
// processor with the same XLA flags and number of devices, and after that only
// those in the type that has been wrong before.
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
		// Where this cannot be written, the whole set runs again next time.
		os.WriteFile(seen, []byte(b.info.Plugin+"\n"), 0o644)
	}
	return nil
}

// trustKey stands for everything that the canaries' results depend on. For another number of devices the collectives
// are other programs.
func (b *Backend) trustKey() string {
	return digest(b.codeKey(), fmt.Sprint(b.info.Devices))
}

// codeKey stands for everything that the machine code which XLA makes of a program depends on.
func (b *Backend) codeKey() string {
	i := b.info
	return digest(i.Plugin, identity(i.Plugin), i.API, string(i.Platform), os.Getenv("XLA_FLAGS"), processor())
}

func digest(parts ...string) string {
	sum := sha256.Sum256(fmt.Appendf(nil, "%q", parts))
	return hex.EncodeToString(sum[:])[:16]
}

// identity changes when the file does; it is "" where there is no such file. A hash of the contents would mean to read
// 250 MB at each opening, which takes longer than all canaries. The file's attributes are enough: the kernel sets the
// time of change (ctime) at each write, and no program can set it back, as it can the time of modification; a file that
// is moved here has another inode. A change goes unseen only where the clock was set back or the disk was written to
// below the file system. Whoever can do that can also write to the folder that says what is trusted.
func identity(path string) string {
	var file unix.Stat_t
	if unix.Stat(path, &file) != nil {
		return ""
	}
	return fmt.Sprint(file.Ino, file.Size, file.Mtim, file.Ctim)
}

// processor names the CPU and what it can do: XLA compiles for it.
func processor() string {
	text, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		return runtime.GOARCH
	}
	first, _, _ := strings.Cut(string(text), "\n\n")
	var kept []string
	for line := range strings.Lines(first) {
		name, _, _ := strings.Cut(line, ":")
		switch strings.TrimSpace(name) {
		case "model name", "flags", "CPU part", "Features":
			kept = append(kept, line)
		}
	}
	return strings.Join(kept, "")
}
