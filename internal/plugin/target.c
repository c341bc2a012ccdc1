//go:build !resident

#include <stdatomic.h>

#include "pjrt.h"
#include "target.h"

// A client with a target has the devices of XLA for CPUs, and the compiler of XLA for GPUs. Its table of functions is
// the first one's, but for what compiles and what is asked of compiled programs. Both live as long as the process.
static const PJRT_Api *host, *gpu;

// An error of ours: whoever reads a PJRT_Error of the table must tell them from the host's, of which the first word is a
// pointer too.
typedef struct { const void *ours; char *message; } target_error;

static PJRT_Error *target_fail(char *message) {
	target_error *e = malloc(sizeof *e);
	e->ours = &gpu;
	e->message = message;
	return (PJRT_Error *)e;
}

static target_error *ours(const PJRT_Error *error) {
	target_error *e = (target_error *)error;
	return e && e->ours == &gpu ? e : NULL;
}

static void target_message(PJRT_Error_Message_Args *args) {
	target_error *e = ours(args->error);
	if (!e) { host->PJRT_Error_Message(args); return; }
	args->message = e->message;
	args->message_size = strlen(e->message);
}

static PJRT_Error *target_code(PJRT_Error_GetCode_Args *args) {
	if (!ours(args->error)) return host->PJRT_Error_GetCode(args);
	args->code = PJRT_Error_Code_UNKNOWN;
	return NULL;
}

static void target_destroy(PJRT_Error_Destroy_Args *args) {
	target_error *e = ours(args->error);
	if (!e) { host->PJRT_Error_Destroy(args); return; }
	free(e->message);
	free(e);
}

// from_gpu makes an error of the GPUs' plugin one of ours.
static PJRT_Error *from_gpu(PJRT_Error *error) {
	char *message = pjrt_failed(gpu, error);
	return message ? target_fail(message) : NULL;
}

#define OF_GPU(name) static PJRT_Error *target_##name(name##_Args *args) { return from_gpu(gpu->name(args)); }
OF_GPU(PJRT_Executable_Name)
OF_GPU(PJRT_Executable_NumOutputs)
OF_GPU(PJRT_Executable_GetCompiledMemoryStats)
OF_GPU(PJRT_Executable_Destroy)

// A loaded executable of the table is the executable itself, which is destroyed as such.
static PJRT_Error *target_get(PJRT_LoadedExecutable_GetExecutable_Args *args) {
	args->executable = (PJRT_Executable *)args->loaded_executable;
	return NULL;
}

static PJRT_Error *target_drop(PJRT_LoadedExecutable_Destroy_Args *args) { return NULL; }

static PJRT_Error *target_execute(PJRT_LoadedExecutable_Execute_Args *args) {
	return target_fail(strdup("the program is compiled for a device that is not here"));
}

// The clients with targets, and their devices (targets are never removed: a client that has the address of an earlier one
// is given a new target before it compiles).
typedef struct target { PJRT_Client *client; PJRT_TopologyDescription *topology; struct target *next; } target;
static target *_Atomic targets;

static PJRT_Error *target_compile(PJRT_Client_Compile_Args *args) {
	target *t = atomic_load(&targets);
	while (t->client != args->client) t = t->next; // the newest first
	PJRT_Compile_Args compile = { PJRT_Compile_Args_STRUCT_SIZE, NULL, t->topology, args->program,
		args->compile_options, args->compile_options_size };
	PJRT_Error *failed = from_gpu(gpu->PJRT_Compile(&compile));
	args->executable = (PJRT_LoadedExecutable *)compile.executable;
	return failed;
}

// target_table makes a table for a client with a target, which is never freed. It returns what is wrong, for the caller
// to free, or NULL.
char *target_table(const void *table_of, const char *gpu_path, void **made) {
	const char *problem = NULL;
	const PJRT_Api *of = table_of, *found = pjrt_api(gpu_path, &problem);
	if (found && host && (host != of || gpu != found)) problem = "another pair of plugins does in this process";
	if (problem) return strdup(problem);
	PJRT_Plugin_Initialize_Args start = { PJRT_Plugin_Initialize_Args_STRUCT_SIZE };
	char *failed = gpu ? NULL : pjrt_failed(found, found->PJRT_Plugin_Initialize(&start));
	if (failed) return failed;
	host = of;
	gpu = found;
	PJRT_Api *table = *made = malloc(of->struct_size);
	memcpy(table, of, of->struct_size);
	table->PJRT_Error_Message = target_message;
	table->PJRT_Error_GetCode = target_code;
	table->PJRT_Error_Destroy = target_destroy;
	table->PJRT_Client_Compile = target_compile;
	table->PJRT_Executable_Name = target_PJRT_Executable_Name;
	table->PJRT_Executable_NumOutputs = target_PJRT_Executable_NumOutputs;
	table->PJRT_Executable_GetCompiledMemoryStats = target_PJRT_Executable_GetCompiledMemoryStats;
	table->PJRT_Executable_Destroy = target_PJRT_Executable_Destroy;
	table->PJRT_LoadedExecutable_GetExecutable = target_get;
	table->PJRT_LoadedExecutable_Destroy = target_drop;
	table->PJRT_LoadedExecutable_Execute = target_execute;
	return NULL;
}

// target_set makes a client compile for devices of a kind that need not be here, which config and sizes describe. It
// returns what is wrong, for the caller to free, or NULL.
char *target_set(void *client, const char *config, const char *sizes) {
	PJRT_NamedValue options[2] = {
		{ PJRT_NamedValue_STRUCT_SIZE, NULL, "topology", 8, PJRT_NamedValue_kString },
		{ PJRT_NamedValue_STRUCT_SIZE, NULL, "target_config", 13, PJRT_NamedValue_kString } };
	options[0].string_value = sizes;
	options[0].value_size = strlen(sizes);
	options[1].string_value = config;
	options[1].value_size = strlen(config);
	PJRT_TopologyDescription_Create_Args args = {
		PJRT_TopologyDescription_Create_Args_STRUCT_SIZE, NULL, "", 0, options, 2 };
	char *failed = pjrt_failed(gpu, gpu->PJRT_TopologyDescription_Create(&args));
	if (failed) return failed;
	target *t = malloc(sizeof *t);
	*t = (target){ client, args.topology, atomic_load(&targets) };
	atomic_store(&targets, t);
	return NULL;
}
