package plugin

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"strings"
	"testing"

	"github.com/shardbook/shardbook/internal/must"
)

// startsNot is a plugin that does not start, and says so in a long text.
const startsNot = `#include <stddef.h>
#include <string.h>
#include "pjrt_c_api.h"
static char text[SIZE];
static PJRT_Error *start(PJRT_Plugin_Initialize_Args *args) { return (PJRT_Error *)text; }
static void destroy(PJRT_Error_Destroy_Args *args) {}
static void message(PJRT_Error_Message_Args *args) { args->message = text, args->message_size = sizeof text; }
const PJRT_Api *GetPjrtApi(void) {
	static PJRT_Api api = { .struct_size = PJRT_Api_STRUCT_SIZE, .PJRT_Plugin_Initialize = start,
		.PJRT_Error_Destroy = destroy, .PJRT_Error_Message = message };
	memset(text, '!', sizeof text);
	return &api;
}
`

// What a plugin says that does not start is the error, and is freed.
func TestCompileForStartsNot(t *testing.T) {
	const size, times = 4 << 20, 32
	dir := t.TempDir()
	source, library := filepath.Join(dir, "plugin.c"), filepath.Join(dir, "plugin.so")
	must.Do(t, os.WriteFile(source, []byte(startsNot), 0o644))
	if output, err := exec.Command("gcc", "-shared", "-fPIC", "-w", "-I.", fmt.Sprint("-DSIZE=", size), "-o", library,
		source).CombinedOutput(); err != nil {
		t.Fatalf("gcc: %v: %s", err, output)
	}
	held := func() (pages int) { // in memory
		debug.FreeOSMemory()
		text := must.Get(os.ReadFile("/proc/self/statm"))(t)
		must.Get(fmt.Sscan(string(text), new(int), &pages))(t)
		return pages
	}
	before := 0
	for i := range times {
		_, err := CompileFor(nil, nil, Plugin{Path: library, Platform: CUDA}, models["h100"], 1)
		must.Refuse(t, "a plugin that does not start", err, "cannot compile for a NVIDIA H100", strings.Repeat("!", size))
		if i == 0 {
			before = held()
		}
	}
	if more := (held() - before) * os.Getpagesize(); more > size*times/2 {
		t.Errorf("after %d errors of %d bytes the process holds %d bytes more", times, size, more)
	}
}
