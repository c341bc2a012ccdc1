//go:build !resident

package plugin

/*
#cgo LDFLAGS: -ldl
#include "pjrt.h"

static const char *pjrt_version(const char *path, int *major, int *minor) {
	const char *problem = NULL;
	const PJRT_Api *api = pjrt_api(path, &problem);
	if (!api) return problem;
	*major = api->pjrt_api_version.major_version;
	*minor = api->pjrt_api_version.minor_version;
	return NULL;
}
*/
import "C"

import (
	"bytes"
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"unsafe"
)

// Version is the version of a plugin's PJRT C API.
type Version struct{ Major, Minor int }

// String returns the version as XLA writes it, "0.115".
func (v Version) String() string { return fmt.Sprintf("%d.%d", v.Major, v.Minor) }

// oldest is the oldest PJRT API that the tests pass with. Newer ones only append to the table of functions.
var oldest = Version{0, 81}

// loading makes a call and its dlerror message atomic, and guards $XLA_FLAGS.
var loading sync.Mutex

// Load sets XLA's flags for the plugin, loads it into the process and returns its PJRT API version. It calls only the
// plugin's GetPjrtApi, so that another library or version is an error, not a crash.
func Load(p Plugin) (Version, error) {
	if err := whole(p.Path); err != nil {
		return Version{}, err
	}
	loading.Lock()
	defer loading.Unlock()
	if err := setFlags(p); err != nil {
		return Version{}, err
	}
	path := C.CString(p.Path)
	defer C.free(unsafe.Pointer(path))
	var major, minor C.int
	if problem := C.pjrt_version(path, &major, &minor); problem != nil {
		return Version{}, fmt.Errorf("plugin %q is not a PJRT plugin for this machine (%s): give another path, or "+
			"remove it to have one installed", p.Path, C.GoString(problem))
	}
	v := Version{int(major), int(minor)}
	if v.Major != oldest.Major || v.Minor < oldest.Minor {
		return v, fmt.Errorf("plugin %q speaks PJRT API %v, need %v or newer in %d.x: update it or remove it, "+
			"or set %s to another", p.Path, v, oldest, oldest.Major, Env)
	}
	return v, nil
}

// whole returns an error for a truncated library, such as after a broken download: loading one ends the process with
// SIGBUS, which Go cannot catch.
func whole(path string) error {
	file, err := elf.Open(path)
	var format *elf.FormatError
	if errors.As(err, &format) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.EOF) {
		if head, _ := readHead(path, 4); bytes.HasPrefix([]byte("\xcf\xfa\xed\xfe"), head) && len(head) == 4 {
			return nil // macOS's format: the loader itself checks it
		}
		return fmt.Errorf("plugin %q is damaged or not a shared library (%w): remove it, or give another path", path,
			err)
	}
	if err != nil {
		return fmt.Errorf("plugin %q: %w", path, err)
	}
	defer file.Close()
	info, err := os.Stat(path)
	if err != nil {
		return fmt.Errorf("plugin %q: %w", path, err)
	}
	for _, segment := range file.Progs {
		if end := segment.Off + segment.Filesz; segment.Type == elf.PT_LOAD && end > uint64(info.Size()) {
			return fmt.Errorf("plugin %q is cut short: %d bytes of at least %d, as after a broken download: remove "+
				"it, or give another path", path, info.Size(), end)
		}
	}
	return nil
}

func readHead(path string, n int64) ([]byte, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	return io.ReadAll(io.LimitReader(file, n))
}
