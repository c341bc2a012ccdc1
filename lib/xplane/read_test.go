package xplane

import (
	"bytes"
	"encoding/gob"
	"fmt"
	"math/rand/v2"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/shardbook/shardbook/internal/must"
)

// gpuSpace is what XLA for CUDA records of a program on one GPU, by cupti_collector.cc: a copy to the device, a kernel,
// and a memset, on two streams, with the calls of the driver that started them; the parts of XLA around these; samples
// of a counter; and, as in files that other programs have processed, lines of steps, modules and operations.
const gpuSpace = `
planes { name: "/host:__ScopeRangeCallStack__" }
planes { name: "/host:CUPTI"
	event_metadata { key: 1 value { id: 1 name: "cuMemcpyHtoDAsync_v2" } }
	event_metadata { key: 2 value { id: 2 name: "cuLaunchKernel" } }
	event_metadata { key: 3 value { id: 3 name: "cuMemsetD32Async" } }
	stat_metadata { key: 1 value { id: 1 name: "device_id" } }
	stat_metadata { key: 2 value { id: 2 name: "correlation_id" } }
	stat_metadata { key: 3 value { id: 3 name: "context_id" } }
	stat_metadata { key: 4 value { id: 4 name: "memcpy_details" } }
	stat_metadata { key: 5 value { id: 5 name: "kind_src:unknown kind_dst:unknown size:4096 dest:0 async:1" } }
	lines { id: -77 name: "Host Threads/18446744073709551539" timestamp_ns: 1800000000000000000
		events { metadata_id: 1 offset_ps: 2000000 duration_ps: 1500000
			stats { metadata_id: 1 uint64_value: 0 } stats { metadata_id: 2 uint64_value: 41 }
			stats { metadata_id: 3 str_value: "$$1" } stats { metadata_id: 4 ref_value: 5 } }
		events { metadata_id: 2 offset_ps: 5000000 duration_ps: 3000999
			stats { metadata_id: 1 uint64_value: 0 } stats { metadata_id: 2 uint64_value: 42 } }
		events { metadata_id: 3 offset_ps: 9000000 duration_ps: 1000000
			stats { metadata_id: 1 uint64_value: 0 } stats { metadata_id: 2 uint64_value: 43 } } } }
planes { name: "/host:NVTX-CUPTI" }
planes { id: 0 name: "/device:GPU:0"
	stats { metadata_id: 1 str_value: "Nvidia" } stats { metadata_id: 2 str_value: "NVIDIA H100 80GB HBM3" }
	stats { metadata_id: 3 uint64_value: 3352320000000 }
	event_metadata { key: 1 value { id: 1 name: "MemcpyH2D" } }
	event_metadata { key: 2 value { id: 2 name: "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64" } }
	event_metadata { key: 3 value { id: 3 name: "Memset" } }
	event_metadata { key: 4 value { id: 4 name: "power_mw" } }
	event_metadata { key: 5 value { id: 5 name: "dot.3" } }
	stat_metadata { key: 1 value { id: 1 name: "device_vendor" } }
	stat_metadata { key: 2 value { id: 2 name: "gpu_device_name" } }
	stat_metadata { key: 3 value { id: 3 name: "memory_bandwidth" } }
	stat_metadata { key: 4 value { id: 4 name: "correlation_id" } }
	stat_metadata { key: 5 value { id: 5 name: "memcpy_details" } }
	stat_metadata { key: 6 value { id: 6 name: "kind_src:pinned kind_dst:device size:4096 dest:0 async:1" } }
	stat_metadata { key: 7 value { id: 7 name: "theoretical_occupancy_pct" } }
	stat_metadata { key: 8 value { id: 8 name: "kernel_details" } }
	stat_metadata { key: 9 value { id: 9
		name: "regs:168 static_shared:1024 dynamic_shared:98304 grid:8,16,2 block:384,1,1 occ_pct:18.75" } }
	stat_metadata { key: 10 value { id: 10 name: "hlo_op" } }
	stat_metadata { key: 11 value { id: 11 name: "dot.3" } }
	stat_metadata { key: 12 value { id: 12 name: "hlo_module" } }
	stat_metadata { key: 13 value { id: 13 name: "step" } }
	stat_metadata { key: 14 value { id: 14 name: "program_id" } }
	stat_metadata { key: 15 value { id: 15 name: "Memset_details" } }
	stat_metadata { key: 16 value { id: 16 name: "kind:device num_bytes:128 async:1" } }
	lines { id: 14 name: "Stream #14(MemcpyH2D)" timestamp_ns: 1800000000000000000
		events { metadata_id: 1 offset_ps: 4000000 duration_ps: 2000000
			stats { metadata_id: 4 uint64_value: 41 } stats { metadata_id: 5 ref_value: 6 } } }
	lines { id: 13 name: "Stream #13(Kernel,Memset)" timestamp_ns: 1800000000000000000
		events { metadata_id: 2 offset_ps: 12000000 duration_ps: 70000000
			stats { metadata_id: 4 uint64_value: 42 } stats { metadata_id: 7 double_value: 18.75 }
			stats { metadata_id: 8 ref_value: 9 } stats { metadata_id: 10 ref_value: 11 }
			stats { metadata_id: 12 ref_value: 13 } stats { metadata_id: 14 int64_value: 7 } }
		events { metadata_id: 3 offset_ps: 83000000 duration_ps: 1000000
			stats { metadata_id: 4 uint64_value: 43 } stats { metadata_id: 15 ref_value: 16 } }
		events { metadata_id: 99 offset_ps: 90000000 } }
	lines { id: 9223372036854775807 name: "_counters_" timestamp_ns: 1800000000000000000
		events { metadata_id: 4 offset_ps: 1000000 } }
	lines { id: 100 name: "XLA Ops" timestamp_ns: 1800000000000000000
		events { metadata_id: 5 offset_ps: 12000000 duration_ps: 70000000
			stats { metadata_id: 10 ref_value: 11 } stats { metadata_id: 12 ref_value: 13 } } }
	lines { id: 101 name: "XLA Modules" events { metadata_id: 5 duration_ps: 90000000 } }
	lines { id: 102 name: "Steps" events { metadata_id: 5 duration_ps: 90000000 } }
	lines { id: 103 name: "CUPTI overhead" events { metadata_id: 5 duration_ps: 90000000 } } }
planes { name: "/host:CPU"
	event_metadata { key: 1 value { id: 1 name: "PjRtStreamExecutorLoadedExecutable::Execute" } }
	event_metadata { key: 2 value { id: 2 name: "dot.3" } }
	stat_metadata { key: 1 value { id: 1 name: "hlo_op" } }
	lines { id: -77 name: "shardbook" timestamp_ns: 1799999999999999000
		events { metadata_id: 1 offset_ps: 1000000 duration_ps: 15000000 } }
	lines { id: 78 name: "shardbook" timestamp_ns: 1799999999999999000
		events { metadata_id: 2 offset_ps: 3000000 duration_ps: 1000000
			stats { metadata_id: 1 str_value: "dot.3" } } } }
warnings: "Detected GPU events dropped on host: Profiler has collected 3 driver events and 3 device events."
errors: "CUPTI error"`

func TestRead(t *testing.T) {
	start := time.Unix(1_800_000_000, 0)
	at := func(µs int) time.Time { return start.Add(time.Duration(µs) * time.Microsecond) }
	const µs = time.Microsecond
	want := &Profile{
		Devices: []Device{{Name: "NVIDIA H100 80GB HBM3", MemoryBandwidth: 3352320000000}},
		Events: []Event{
			{Host: true, Line: "shardbook", Name: "PjRtStreamExecutorLoadedExecutable::Execute", Start: at(0),
				Duration: 15 * µs},
			{Host: true, Line: "shardbook 2", Name: "dot.3", Start: at(2), Duration: µs, Operation: "dot.3"},
			{Host: true, Line: "shardbook", Name: "cuMemcpyHtoDAsync_v2", Start: at(2), Duration: 1500,
				Correlation: 41, Bytes: 4096, From: "unknown", To: "unknown"},
			{Host: true, Line: "shardbook", Name: "cuLaunchKernel", Start: at(5), Duration: 3 * µs, Correlation: 42},
			{Host: true, Line: "shardbook", Name: "cuMemsetD32Async", Start: at(9), Duration: µs, Correlation: 43},
			{Line: "Stream #14", Name: "MemcpyH2D", Start: at(4), Duration: 2 * µs, Correlation: 41, Bytes: 4096,
				From: "pinned", To: "device"},
			{Line: "Stream #13", Name: "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64", Start: at(12),
				Duration: 70 * µs, Correlation: 42, Module: "step", Operation: "dot.3",
				Kernel: Kernel{Grid: [3]int{8, 16, 2}, Block: [3]int{384, 1, 1}, Registers: 168,
					SharedMemory: 99328, Occupancy: 18.75}},
			{Line: "Stream #13", Name: "Memset", Start: at(83), Duration: µs, Correlation: 43, Bytes: 128},
			{Line: "Stream #13", Start: at(90)},
		},
		Warnings: []string{
			"CUPTI error",
			"Detected GPU events dropped on host: Profiler has collected 3 driver events and 3 device events.",
		},
	}
	data := space(t, gpuSpace)
	got := must.Get(Read(data))(t)
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v\nwant %+v", got, want)
	}
	if ended, err := Read(append(slices.Clone(data), 0)); err != nil || !reflect.DeepEqual(ended, want) {
		t.Errorf("with a zero byte after it, as XLA's plugin for CUDA gives it: %+v, %v", ended, err)
	}
	if read := readDumbly(t, data); !reflect.DeepEqual(read, want) {
		t.Errorf("the other reader gets %+v", read)
	}
	// The host's event of the operation, which launched the device's, does not count, nor do lines that repeat it.
	if got, want := got.Operations(), []OperationTime{{"step", "dot.3", 1, 70 * µs}}; !slices.Equal(got, want) {
		t.Errorf("operations %+v, want %+v", got, want)
	}
	for e, want := range map[int]string{5: "pinned to device", 8: "", 6: "grid 8×16×2, block 384×1×1, 168 registers, " +
		"99328 B shared, occupancy 18.75 %"} {
		if got := got.Events[e].Detail(); got != want {
			t.Errorf("details %q, want %q", got, want)
		}
	}
}

// A profile crosses a socket to a notebook's cells.
func TestGob(t *testing.T) {
	p := must.Get(Read(space(t, gpuSpace)))(t)
	var sent bytes.Buffer
	must.Do(t, gob.NewEncoder(&sent).Encode(p))
	var got *Profile
	must.Do(t, gob.NewDecoder(&sent).Decode(&got))
	if fmt.Sprintf("%+v", got) != fmt.Sprintf("%+v", p) {
		t.Errorf("sent %+v, received %+v", p, got)
	}
}

func TestReadNothing(t *testing.T) {
	for _, data := range [][]byte{nil, {0}, space(t, `planes { name: "/device:TPU:0" lines { events { } } } planes { }`),
		[]byte("\x0a\x03\x12\x01\x00")} { // the last is a plane whose name ends with a zero byte
		p, err := Read(data)
		if err != nil || len(p.Events)+len(p.Devices)+len(p.Warnings)+len(p.Operations()) > 0 {
			t.Errorf("%q: %+v, %v", data, p, err)
		}
	}
}

// A statistic of an event overrides that of its kind, and tables may come after what refers to them.
func TestReadKinds(t *testing.T) {
	p := must.Get(Read(space(t, `planes { name: "/device:GPU:3"
		event_metadata { key: 8 value { name: "loop" stats { metadata_id: 1 str_value: "overridden" }
			stats { metadata_id: 2 str_value: "step" } stats { metadata_id: 3 uint64_value: 64 } } }
		stat_metadata { key: 1 value { name: "hlo_op" } } stat_metadata { key: 2 value { name: "hlo_module" } }
		stat_metadata { key: 3 value { name: "flops" } } stat_metadata { key: 4 value { name: "fusion" } }
		stat_metadata { key: 5 value { name: "bytes_accessed" } }
		lines { name: "Stream #7" events { metadata_id: 8 stats { metadata_id: 1 ref_value: 4 }
			stats { metadata_id: 5 int64_value: 1024 } } } }`)))(t)
	want := []Event{{Device: 3, Line: "Stream #7", Name: "loop", Start: time.Unix(0, 0), Module: "step",
		Operation: "fusion", FLOPs: 64, Bytes: 1024}}
	if !reflect.DeepEqual(p.Events, want) {
		t.Errorf("%+v", p.Events)
	}
}

// recording is a file of testdata: cuda-host is what the profiler of XLA's plugin for CUDA (jax-cuda13-pjrt 0.11.2)
// recorded, without a GPU, of the compilation of a matmul on three threads. mlp is a file that JAX (jaxlib 0.10.2)
// wrote on a CPU.
func recording(t testing.TB, name string) []byte {
	data := must.Get(os.ReadFile("testdata/" + name + ".xplane.pb"))(t)
	return data
}

func TestReadRecordings(t *testing.T) {
	for _, c := range []struct {
		name, event, line string
		events, lines     int
		from, to          int64 // nanoseconds since 1970
	}{
		{"cuda-host", "PTX->CUBIN", "rec2", 96, 3, 1795649762446988567, 1795649762800000000},
		{"mlp", "dot.2", "tf_XLAPjRtCpuClient/3255841157160552002", 54, 3, 1795319610748177462, 1795319610748912875},
	} {
		data := recording(t, c.name)
		p := must.Get(Read(data))(t)
		lines, found := map[string]bool{}, false
		for _, e := range p.Events {
			lines[e.Line] = true
			found = found || e.Name == c.event && e.Duration > 0
			if !e.Host || e.Start.UnixNano() < c.from || e.End().UnixNano() > c.to {
				t.Errorf("%s: %+v is not between %d and %d", c.name, e, c.from, c.to)
			}
		}
		if len(p.Events) != c.events || len(lines) != c.lines || !found || !lines[c.line] {
			t.Errorf("%s: %d events on %v, with %s: %v", c.name, len(p.Events), lines, c.event, found)
		}
		if want := readDumbly(t, data[:len(data)-zeros(data)]); !reflect.DeepEqual(p, want) {
			t.Errorf("%s: got %+v\nwant %+v", c.name, p, want)
		}
	}
	ops := must.Get(Read(recording(t, "mlp")))(t).Operations()
	if len(ops) != 7 || ops[0].Name != "dot.2" || ops[0].Events != 2 {
		t.Errorf("operations %+v", ops)
	}
}

// zeros is the number of zero bytes at the end.
func zeros(data []byte) int { return len(data) - len(strings.TrimRight(string(data), "\x00")) }

// randomSpace is an XSpace of random planes, lines, tables and statistics; names and numbers meet by chance.
func randomSpace(random *rand.Rand) string {
	var b strings.Builder
	pick := func(names ...string) string { return names[random.IntN(len(names))] }
	times := func(most int, f func(i int)) {
		for i := range random.IntN(most + 1) {
			f(i)
		}
	}
	names := []string{"hlo_op", "hlo_module", "gpu_device_name", "kernel_details", "memcpy_details",
		"correlation_id", "device_id", "flops", "memory_bandwidth", "other",
		"regs:9 static_shared:3 dynamic_shared:4 grid:5,6,7 block:8,9,1 occ_pct:12.5",
		"kind_src:pinned kind_dst:device size:4096 dest:0 async:1"}
	stat := func(int) { // texts where texts belong, and numbers where numbers do
		switch name := random.IntN(10); {
		case name < 3:
			fmt.Fprintf(&b, " stats { metadata_id: %d "+pick(`ref_value: %d`, `str_value: "x%d"`)+" }", name,
				random.IntN(len(names)+1))
		case name < 5 && random.IntN(2) == 0:
			fmt.Fprintf(&b, " stats { metadata_id: %d ref_value: %d }", name, name+7)
		case name < 5:
			fmt.Fprintf(&b, " stats { metadata_id: %d str_value: %q }", name, names[name+7])
		default:
			fmt.Fprintf(&b, " stats { metadata_id: %d "+pick(`uint64_value: %d`, `int64_value: %d`)+" }", name,
				random.IntN(10))
		}
	}
	// of the environment first, which may set the time of all
	if random.IntN(2) == 0 {
		b.WriteString(`planes { name: "Task Environment" stats { metadata_id: 1 uint64_value: 1700000000000000000 }
			stat_metadata { key: 1 value { name: "profile_start_time" } } }`)
	}
	times(4, func(int) {
		fmt.Fprintf(&b, "\nplanes { name: %q", pick("/host:CPU", "/host:CUPTI", "/device:GPU:0", "/device:GPU:12",
			"/device:CUSTOM:1", "/host:metadata", "Syscalls"))
		for i, name := range names {
			if random.IntN(4) > 0 || i > 9 {
				fmt.Fprintf(&b, " stat_metadata { key: %d value { name: %q } }", i, name)
			}
		}
		times(3, stat) // of the plane
		times(3, func(i int) {
			fmt.Fprintf(&b, " event_metadata { key: %d value { name: %q", i, pick("kernel", "copy", ""))
			times(2, stat)
			b.WriteString(" } }")
		})
		times(3, func(int) {
			fmt.Fprintf(&b, " lines { id: %d name: %q timestamp_ns: %d", random.IntN(5)-1,
				pick("Stream #7(Kernel)", "Stream #12", "XLA Ops", "python", "main", "_counters_"), random.IntN(1e9))
			times(4, func(int) {
				fmt.Fprintf(&b, " events { metadata_id: %d offset_ps: %d duration_ps: %d", random.IntN(4),
					random.IntN(1e9)-1e6, random.IntN(1e9))
				times(5, stat)
				b.WriteString(" }")
			})
			b.WriteString(" }")
		})
		b.WriteString(" }")
	})
	return b.String()
}

func TestReadRandom(t *testing.T) {
	random := rand.New(rand.NewPCG(31, 32))
	events := 0
	for range 2000 {
		text := randomSpace(random)
		data := space(t, text)
		got, want := must.Get(Read(data))(t), readDumbly(t, data)
		if !reflect.DeepEqual(got, want) {
			t.Fatalf("%s\ngot %+v\nwant %+v", text, got, want)
		}
		events += len(got.Events)
	}
	if events < 2000 {
		t.Errorf("only %d events", events)
	}
}

// bytesField and intField write a field of a message.
func bytesField(number protowire.Number, value []byte) []byte {
	return protowire.AppendBytes(protowire.AppendTag(nil, number, protowire.BytesType), value)
}

func intField(number protowire.Number, value uint64) []byte {
	return protowire.AppendVarint(protowire.AppendTag(nil, number, protowire.VarintType), value)
}

func TestReadDamaged(t *testing.T) {
	whole := space(t, gpuSpace)
	inPlane := func(fields ...[]byte) []byte {
		return bytesField(1, slices.Concat(append(fields, bytesField(2, []byte("/host:CPU")))...))
	}
	const huge = 1<<64 - 1
	for name, damaged := range map[string][]byte{
		"cut short":            whole[:len(whole)-1],
		"a byte more":          append(slices.Clone(whole), 0xff),
		"two zero bytes":       append(slices.Clone(whole), 0, 0),
		"a field of no type":   {0x0f},
		"a varint of 11 bytes": append([]byte{0x08}, []byte("\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01")...),
		"a name":               bytesField(1, []byte("\x12\xff")),
		"a kind":               inPlane(bytesField(4, []byte{0xff})),
		"a table":              inPlane(bytesField(5, bytesField(2, []byte{0xff}))),
		"a line":               inPlane(bytesField(3, []byte{0xff})),
		"a statistic":          inPlane(bytesField(3, bytesField(4, bytesField(4, []byte{0xff})))),
		"a duration below 0":   inPlane(bytesField(3, bytesField(4, intField(3, huge)))),
		"a line below 0":       inPlane(bytesField(3, intField(3, huge))),
		"a line after 2115":    inPlane(bytesField(3, intField(3, 1<<62))),
	} {
		if p, err := Read(damaged); err == nil || p != nil {
			t.Errorf("%s was read as %+v, %v", name, p, err)
		}
	}
	for n := range whole { // cut anywhere, it is an error, or it has fewer planes
		if p, err := Read(whole[:n]); (p == nil) == (err == nil) {
			t.Fatalf("cut after %d bytes: %+v, %v", n, p, err)
		}
	}
	// the largest numbers that are not errors
	p := must.Get(Read(inPlane(bytesField(3, slices.Concat(intField(1, huge), intField(3, 1<<62-1<<54),
		bytesField(4, slices.Concat(intField(1, huge), intField(2, 1<<63-1), intField(3, 1<<63-1))))))))(t)
	if e := p.Events[0]; e.Duration <= 0 || !e.End().After(e.Start) || e.Start.Year() != 2115 {
		t.Errorf("the last event is %+v", e)
	}
}

func FuzzRead(f *testing.F) {
	f.Add(recording(f, "mlp"))
	f.Add(recording(f, "cuda-host"))
	f.Add(space(f, gpuSpace))
	f.Fuzz(func(t *testing.T, data []byte) {
		p, err := Read(data)
		if (p == nil) == (err == nil) {
			t.Fatalf("%v, %v", p, err)
		}
		if err != nil {
			return
		}
		p.Operations()
		for _, e := range p.Events {
			if e.End().Before(e.Start) {
				t.Fatalf("%+v ends before it starts", e)
			}
		}
	})
}
