package plugin

import (
	"fmt"
	"strings"
)

// Model is a model of GPU as XLA's compiler knows it. The figures are those of XLA's own descriptions of these models
// (xla/backends/gpu/target_config/specs), which it read from the devices.
type Model struct {
	Name        string // as the device says
	Capability  [2]int // compute capability
	Accelerated bool   // has instructions of its generation alone (sm_90a)
	Cores       int    // streaming multiprocessors
	FPUs        int    // float32 units of a core
	Shared      int    // bytes of shared memory of a core; a block may have 1 KiB less
	L2          int    // bytes
	Memory      int64  // bytes
	Bandwidth   int64  // bytes per second
	Clock       float64
}

// models are the models by the names for [FindModel].
var models = map[string]Model{
	"a100": {"NVIDIA A100-SXM4-80GB", [2]int{8, 0}, false, 108, 64, 167936, 41943040, 85100068864, 2039040000000, 1.41},
	"h100": {"NVIDIA H100 80GB HBM3", [2]int{9, 0}, true, 132, 128, 233472, 52428800, 84942979072, 3352320000000, 1.98},
	"h200": {"NVIDIA H200 141GB HBM3e", [2]int{9, 0}, true, 132, 128, 233472, 52428800, 151397597184, 4800000000000, 1.98},
	"b200": {"NVIDIA B200", [2]int{10, 0}, true, 148, 128, 233472, 132644864, 191514411008, 7672320000000, 1.965},
}

// FindModel returns a model by its short name, such as "h100".
func FindModel(name string) (Model, error) {
	gpu, ok := models[strings.ToLower(name)]
	if !ok {
		return Model{}, fmt.Errorf("no description of a GPU %q: choose a100, h100, h200 or b200", name)
	}
	return gpu, nil
}

// config returns XLA's description of the model, a GpuTargetConfigProto (device_description.proto) as text. The
// versions of cuDNN and CUDA are those that shardbook installs: XLA decides by them what it may use.
func (m Model) config() string {
	extension := "NONE"
	if m.Accelerated {
		extension = "ACCELERATED_FEATURES"
	}
	return fmt.Sprintf(`gpu_device_info {
  threads_per_block_limit: 1024 threads_per_warp: 32 threads_per_core_limit: 2048
  block_dim_limit_x: 2147483647 block_dim_limit_y: 65535 block_dim_limit_z: 65535
  thread_dim_limit_x: 1024 thread_dim_limit_y: 1024 thread_dim_limit_z: 64
  registers_per_core_limit: 65536 registers_per_block_limit: 65536
  shared_memory_per_block: 49152 shared_memory_per_core: %d shared_memory_per_block_optin: %d
  core_count: %d fpus_per_core: %d clock_rate_ghz: %g
  l2_cache_size: %d device_memory_size: %d memory_bandwidth: %d
  cuda_compute_capability { major: %d minor: %d feature_extension: %s }
  device_vendor: "NVIDIA Corporation" device_address_bits: 64 name: %q
  runtime_version: "13.0.0" compile_time_toolkit_version: "13.0.0" driver_version: "13.0.0" dnn_version: "9.19.0"
}
platform_name: "CUDA"
dnn_version_info { major: 9 minor: 19 }
runtime_version { major: 13 }
device_description_str: %q
`, m.Shared, m.Shared-1024, m.Cores, m.FPUs, m.Clock, m.L2, m.Memory, m.Bandwidth, m.Capability[0], m.Capability[1],
		extension, m.Name, m.Name)
}
