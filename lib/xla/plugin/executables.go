package plugin

/*
#include "pjrt.h"

extern PJRT_Error *compileThrough(PJRT_Client_Compile_Args *);

// compile_through returns a copy of a plugin's table whose compiler is Go's compileThrough; NULL where the plugin
// cannot load what was compiled before. It is never freed.
static PJRT_Api *compile_through(const PJRT_Api *api) {
	PJRT_Api *copy = PJRT_HAS(api, PJRT_Executable_DeserializeAndLoad) ? malloc(api->struct_size) : NULL;
	if (!copy) return NULL;
	memcpy(copy, api, api->struct_size);
	copy->PJRT_Client_Compile = compileThrough;
	return copy;
}

static PJRT_Error *compile(const PJRT_Api *api, PJRT_Client_Compile_Args *args) {
	return api->PJRT_Client_Compile(args);
}

// failed destroys an error and tells whether there was one.
static int failed(const PJRT_Api *api, PJRT_Error *error) {
	char *message = pjrt_failed(api, error);
	free(message);
	return message != NULL;
}

// serialize returns a loaded executable as bytes, for the caller to free; NULL where XLA cannot.
static char *serialize(const PJRT_Api *api, PJRT_LoadedExecutable *loaded, size_t *size) {
	PJRT_LoadedExecutable_GetExecutable_Args get = {
		PJRT_LoadedExecutable_GetExecutable_Args_STRUCT_SIZE, NULL, loaded };
	if (failed(api, api->PJRT_LoadedExecutable_GetExecutable(&get))) return NULL;
	PJRT_Executable_Serialize_Args args = { PJRT_Executable_Serialize_Args_STRUCT_SIZE, NULL, get.executable };
	char *bytes = NULL;
	if (!failed(api, api->PJRT_Executable_Serialize(&args))) {
		*size = args.serialized_bytes_size;
		if ((bytes = malloc(*size))) memcpy(bytes, args.serialized_bytes, *size);
		args.serialized_executable_deleter(args.serialized_executable);
	}
	PJRT_Executable_Destroy_Args done = { PJRT_Executable_Destroy_Args_STRUCT_SIZE, NULL, get.executable };
	failed(api, api->PJRT_Executable_Destroy(&done));
	return bytes;
}

// deserialize loads serialized bytes on a client's devices; NULL where XLA cannot.
static PJRT_LoadedExecutable *deserialize(const PJRT_Api *api, PJRT_Client *client, const char *bytes, size_t size) {
	PJRT_Executable_DeserializeAndLoad_Args args = {
		PJRT_Executable_DeserializeAndLoad_Args_STRUCT_SIZE, NULL, client, bytes, size };
	return failed(api, api->PJRT_Executable_DeserializeAndLoad(&args)) ? NULL : args.loaded_executable;
}
*/
import "C"

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"
	"unsafe"
)

// Executables is a folder with compiled programs, which processes of the same machine share. XLA loads one in about a
// thirtieth of the time that it takes to compile it.
type Executables struct {
	Folder string
	Limit  int64  // bytes; beyond it those that were not used for longest are removed
	Key    string // all that machine code depends on besides the program: the plugin, its flags, the processor
}

// compilers has, for each client that compiles through us, where to look first.
var compilers sync.Map // PJRT_Client* → *compiler

type compiler struct {
	api  *C.PJRT_Api  // the plugin's own
	kept *Executables // nil: compile always
}

// CompileThrough returns a plugin's table of functions for one client (PJRT_Client*) whose programs are compiled as
// always until [KeepExecutables] is called; or the table itself if the plugin cannot load what it compiled before.
func CompileThrough(table, client unsafe.Pointer) unsafe.Pointer {
	api := (*C.PJRT_Api)(table)
	through := C.compile_through(api)
	if through == nil {
		return table
	}
	compilers.Store(client, compiler{api: api})
	return unsafe.Pointer(through)
}

// KeepExecutables has a client that compiles through us look into the folder first, and put there what it compiles;
// unless the plugin has refused to load what lies there.
func KeepExecutables(client unsafe.Pointer, kept *Executables) {
	if kept != nil && kept.refused() {
		kept = nil
	}
	if c, ok := compilers.Load(client); ok {
		compilers.Store(client, compiler{c.(compiler).api, kept})
	}
}

// ForgetClient is for a client that is closed: its address may be another's next.
func ForgetClient(client unsafe.Pointer) { compilers.Delete(client) }

// compileThrough stands in the place of PJRT_Client_Compile.
//
//export compileThrough
func compileThrough(args *C.PJRT_Client_Compile_Args) *C.PJRT_Error {
	client := unsafe.Pointer(args.client)
	found, _ := compilers.Load(client)
	c := found.(compiler)
	if c.kept == nil {
		return C.compile(c.api, args)
	}
	path := c.kept.path(args)
	if serialized := read(path); serialized != nil {
		at := (*C.char)(unsafe.Pointer(unsafe.SliceData(serialized)))
		args.executable = C.deserialize(c.api, args.client, at, C.size_t(len(serialized)))
		if args.executable != nil {
			return nil
		}
		c.kept.refuse()
		KeepExecutables(client, nil)
		return C.compile(c.api, args)
	}
	if problem := C.compile(c.api, args); problem != nil {
		return problem
	}
	var size C.size_t
	if serialized := C.serialize(c.api, args.executable, &size); serialized != nil {
		c.kept.write(path, unsafe.Slice((*byte)(unsafe.Pointer(serialized)), size))
		C.free(unsafe.Pointer(serialized))
	}
	return nil
}

// path is where the program is, or would be.
func (e *Executables) path(args *C.PJRT_Client_Compile_Args) string {
	h := sha256.New()
	for _, part := range [][]byte{
		[]byte(e.Key),
		unsafe.Slice((*byte)(unsafe.Pointer(args.program.format)), args.program.format_size),
		unsafe.Slice((*byte)(unsafe.Pointer(args.program.code)), args.program.code_size),
		unsafe.Slice((*byte)(unsafe.Pointer(args.compile_options)), args.compile_options_size),
	} {
		fmt.Fprintf(h, "%d:", len(part))
		h.Write(part)
	}
	return filepath.Join(e.Folder, hex.EncodeToString(h.Sum(nil)))
}

// Where the plugin does not load what it has compiled on the same machine, nothing is kept any more: XLA writes an
// error to the terminal at each try. It takes how LLVM tunes code for some of Intel's processors for something that
// these must be able to do (https://github.com/openxla/xla/issues/44565).

func (e *Executables) refusal() string {
	sum := sha256.Sum256([]byte(e.Key))
	return filepath.Join(e.Folder, "refused-"+hex.EncodeToString(sum[:]))
}

func (e *Executables) refuse() { os.WriteFile(e.refusal(), nil, 0o600) }

func (e *Executables) refused() bool {
	_, err := os.Stat(e.refusal())
	return err == nil
}

// read returns what write wrote, or nil: XLA does not look whether it is given all of it.
func read(path string) []byte {
	content, err := os.ReadFile(path)
	if err != nil || len(content) <= sha256.Size {
		return nil
	}
	serialized := content[sha256.Size:]
	if sum := sha256.Sum256(serialized); !bytes.Equal(sum[:], content[:sha256.Size]) {
		os.Remove(path)
		return nil
	}
	now := time.Now()
	os.Chtimes(path, now, now)
	return serialized
}

// write keeps a program, whole or not at all. Where it cannot, the program is compiled again next time.
func (e *Executables) write(path string, serialized []byte) {
	if os.MkdirAll(e.Folder, 0o700) != nil {
		return
	}
	e.prune()
	file, err := os.CreateTemp(e.Folder, ".new-*")
	if err != nil {
		return
	}
	sum := sha256.Sum256(serialized)
	_, err = file.Write(sum[:])
	if err == nil {
		_, err = file.Write(serialized)
	}
	if file.Close() != nil || err != nil || os.Rename(file.Name(), path) != nil {
		os.Remove(file.Name())
	}
}

// pruned has the folders that this process has looked through: once is enough, as processes are many.
var pruned sync.Map

// prune removes those that were not used for longest until a quarter of the limit is free again.
func (e *Executables) prune() {
	if _, before := pruned.LoadOrStore(e.Folder, true); before {
		return
	}
	entries, _ := os.ReadDir(e.Folder)
	var all []fs.FileInfo
	var total int64
	for _, entry := range entries {
		if info, err := entry.Info(); err == nil && info.Mode().IsRegular() {
			all, total = append(all, info), total+info.Size()
		}
	}
	if total <= e.Limit {
		return
	}
	slices.SortFunc(all, func(a, b fs.FileInfo) int { return a.ModTime().Compare(b.ModTime()) })
	for _, info := range all {
		if total <= e.Limit/4*3 {
			return
		}
		if os.Remove(filepath.Join(e.Folder, info.Name())) == nil {
			total -= info.Size()
		}
	}
}
