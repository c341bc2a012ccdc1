package xla

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/shardbook/shardbook/lib/xla/plugin"
)

// executableBytes limits the size of compiled programs in the cache folder.
const executableBytes = 2 << 30

// executables returns the cache of compiled programs, or nil if they are not cached: only XLA's machine code for CPUs
// is known to load, and XLA writes what --xla_dump_to asks for only when it compiles.
func (b *Backend) executables(c config) *plugin.Executables {
	if c.afresh || b.info.Platform != plugin.CPU || strings.Contains(os.Getenv("XLA_FLAGS"), "--xla_dump") {
		return nil
	}
	// The code depends on the number of threads.
	threads := fmt.Sprint(runtime.NumCPU(), os.Getenv("NPROC"), os.Getenv("PJRT_NPROC"))
	return &plugin.Executables{
		Folder: filepath.Join(c.cacheDir, "executables"),
		Limit:  executableBytes,
		Key:    strings.Join([]string{"1", b.codeKey(), threads}, " "),
	}
}
