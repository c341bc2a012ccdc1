//go:build !resident

package plugin

/*
#include "pjrt.h"

extern PJRT_Error *compileThrough(PJRT_Client_Compile_Args *);

// compile_through returns a copy of a plugin's function table that compiles by Go's compileThrough, or NULL if the
// plugin cannot load serialized executables. It is never freed.
static PJRT_Api *compile_through(const PJRT_Api *api) {
	PJRT_Api *copy = PJRT_HAS(api, PJRT_Executable_DeserializeAndLoad) ? malloc(api->struct_size) : NULL;
	if (!copy) return NULL;
	memcpy(copy, api, api->struct_size);
	copy->PJRT_Client_Compile = compileThrough;
	return copy;
}

// compile compiles with more fields at the end of the options, which win, as they do in any message of protobuf.
static PJRT_Error *compile(const PJRT_Api *api, PJRT_Client_Compile_Args *args, const char *more, size_t more_size) {
	const char *given = args->compile_options;
	size_t size = args->compile_options_size;
	char *all = malloc(size + more_size);
	memcpy(all, given, size);
	memcpy(all + size, more, more_size);
	args->compile_options = all;
	args->compile_options_size = size + more_size;
	PJRT_Error *error = api->PJRT_Client_Compile(args);
	args->compile_options = given;
	args->compile_options_size = size;
	free(all);
	return error;
}

// failed destroys an error and returns whether there was one.
static int failed(const PJRT_Api *api, PJRT_Error *error) {
	char *message = pjrt_failed(api, error);
	free(message);
	return message != NULL;
}

// serialize returns a loaded executable as bytes, which the caller frees, or NULL if XLA cannot.
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

// deserialize loads serialized bytes on a client's devices, or returns NULL if XLA cannot.
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

	"google.golang.org/protobuf/encoding/protowire"
)

// Executables is a cache of compiled programs in a folder, which processes of the same machine share. Loading a program
// takes about a thirtieth of the time of compiling it.
type Executables struct {
	Folder string
	Limit  int64  // bytes; beyond it the least recently used are removed
	Key    string // what machine code depends on besides the program: plugin, flags, processor
}

// compilers maps each client to its cache and its plugin's own functions.
var compilers sync.Map // PJRT_Client* → *compiler

type compiler struct {
	api     *C.PJRT_Api  // the plugin's own
	options string       // more fields of its CompileOptionsProto
	kept    *Executables // nil: compile always
}

// CompileThrough returns a plugin's function table for one client (PJRT_Client*), whose programs are compiled with
// these flags of XLA's, by name, which win over those in $XLA_FLAGS. Through it [KeepExecutables] can later cache
// compiled programs. It returns the table itself if the plugin cannot load serialized executables.
func CompileThrough(table, client unsafe.Pointer, flags map[string]string) unsafe.Pointer {
	api := (*C.PJRT_Api)(table)
	through := C.compile_through(api)
	if through == nil {
		return table
	}
	var options []byte
	for name, value := range flags { // env_option_overrides, a map from names to messages with a text
		text := protowire.AppendString(protowire.AppendTag(nil, 1, protowire.BytesType), value)
		entry := protowire.AppendString(protowire.AppendTag(nil, 1, protowire.BytesType), name)
		entry = protowire.AppendBytes(protowire.AppendTag(entry, 2, protowire.BytesType), text)
		options = protowire.AppendBytes(protowire.AppendTag(options, 7, protowire.BytesType), entry)
	}
	compilers.Store(client, compiler{api: api, options: string(options)})
	return unsafe.Pointer(through)
}

// KeepExecutables makes a client of [CompileThrough] cache compiled programs in a folder: it looks there before
// compiling, and stores what it compiles. It stops if the plugin rejects a stored program.
func KeepExecutables(client unsafe.Pointer, kept *Executables) {
	if kept != nil && kept.refused() {
		kept = nil
	}
	if found, ok := compilers.Load(client); ok {
		c := found.(compiler)
		c.kept = kept
		compilers.Store(client, c)
	}
}

// ForgetClient removes a closed client, whose address a new client may get.
func ForgetClient(client unsafe.Pointer) { compilers.Delete(client) }

// compileThrough replaces PJRT_Client_Compile.
//
//export compileThrough
func compileThrough(args *C.PJRT_Client_Compile_Args) *C.PJRT_Error {
	client := unsafe.Pointer(args.client)
	found, _ := compilers.Load(client)
	c := found.(compiler)
	compile := func() *C.PJRT_Error {
		more := (*C.char)(unsafe.Pointer(unsafe.StringData(c.options)))
		return C.compile(c.api, args, more, C.size_t(len(c.options)))
	}
	if c.kept == nil {
		return compile()
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
		return compile()
	}
	if problem := compile(); problem != nil {
		return problem
	}
	var size C.size_t
	if serialized := C.serialize(c.api, args.executable, &size); serialized != nil {
		c.kept.write(path, unsafe.Slice((*byte)(unsafe.Pointer(serialized)), size))
		C.free(unsafe.Pointer(serialized))
	}
	return nil
}

// path returns the file for the program.
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

// If the plugin rejects a program that it compiled on this machine, the cache is not used any more, because XLA prints
// an error at each try. This happens with some Intel processors, where XLA takes LLVM's tuning features for CPU
// features (https://github.com/openxla/xla/issues/44565).

func (e *Executables) refusal() string {
	sum := sha256.Sum256([]byte(e.Key))
	return filepath.Join(e.Folder, "refused-"+hex.EncodeToString(sum[:]))
}

func (e *Executables) refuse() { os.WriteFile(e.refusal(), nil, 0o600) }

func (e *Executables) refused() bool {
	_, err := os.Stat(e.refusal())
	return err == nil
}

// read returns what write wrote, or nil if it is missing or incomplete, which XLA does not check.
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

// write stores a program atomically. If it fails, the program is compiled again next time.
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

// pruned has the folders that this process has pruned; once per process is enough.
var pruned sync.Map

// prune removes the least recently used programs until a quarter of the limit is free.
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
