package xla

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/shardbook/shardbook/lib/xla/plugin"
)

// executableBytes is what compiled programs may take in the cache folder.
const executableBytes = 2 << 30

// executables is where compiled programs are kept; nil where they are not: XLA's machine code is known to load on CPUs,
// and it writes what --xla_dump_to asks for only when it compiles.
func (b *Backend) executables(c config) *plugin.Executables {
	if c.afresh || b.info.Platform != plugin.CPU || strings.Contains(os.Getenv("XLA_FLAGS"), "--xla_dump") {
		return nil
	}
	// XLA compiles for as many threads as it has.
	threads := fmt.Sprint(runtime.NumCPU(), os.Getenv("NPROC"), os.Getenv("PJRT_NPROC"))
	return &plugin.Executables{
		Folder: filepath.Join(c.cacheDir, "executables"),
		Limit:  executableBytes,
		Key:    strings.Join([]string{"1", b.codeKey(), threads}, " "),
	}
}
