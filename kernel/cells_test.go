package kernel_test

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/shardbook/shardbook/internal/kerneltest"
	"github.com/shardbook/shardbook/internal/must"
	"github.com/shardbook/shardbook/internal/systest"
	"github.com/shardbook/shardbook/kernel"
)

// printed runs cells headless and returns what each has printed.
func printed(t *testing.T, k *kernel.Kernel, env []string, cells ...string) []string {
	t.Helper()
	out := filepath.Join(t.TempDir(), "out.ipynb")
	must.Do(t, k.Headless(t.Context(), kernel.Run{Notebook: notebook(t, cells...), Ipynb: out, Env: env}))
	var file struct {
		Cells []struct{ Outputs []struct{ Text []string } }
	}
	must.Do(t, json.Unmarshal(must.Get(os.ReadFile(out))(t), &file))
	var all []string
	for _, cell := range file.Cells {
		text := ""
		for _, output := range cell.Outputs {
			text += strings.Join(output.Text, "")
		}
		all = append(all, text)
	}
	return all
}

// declared is a cell with a trainer on four devices; its loss is from a seed.
const declared = `import (
	"context"

	"github.com/shardbook/shardbook/lib/ddp"
	"github.com/shardbook/shardbook/lib/gpt"
	"github.com/shardbook/shardbook/lib/notebook"
	"github.com/shardbook/shardbook/lib/optim"
	"github.com/shardbook/shardbook/lib/train"
	"github.com/shardbook/shardbook/lib/xla"
)

const batch = 8

var recipe = train.Recipe{Model: gpt.Config{Layers: 1, Width: 32, Heads: 2, Seq: 16, Vocab: 256},
	Optimizer: optim.AdamW(1e-2)}

func spmd() *train.Run {
	backend := notebook.Must(xla.Open(xla.Devices(4)))
	return notebook.Must(ddp.NewSPMD(notebook.Must(backend.Mesh(xla.Axis("data", 4))), recipe))
}

func steps(n int, run *train.Run) {
	batches := notebook.Must(notebook.Must(gpt.GoSource()).Batches(recipe.Model.(gpt.Config), batch))
	for range n {
		x, y, err := batches.Step(run.Steps())
		notebook.Check(err)
		fmt.Printf("%d %.5f\n", run.Steps(), notebook.Must(run.Step(x, y)).Loss)
	}
}`

// A run that a cell has kept goes on in a later one where it was, with arrays that have stayed on the devices; what it
// does is what it would have done; ranks can take it over; and all is the same with the devices in the cells.
func TestCellsLive(t *testing.T) {
	k := kerneltest.Ready(t)
	cells := []string{declared,
		"%%\nrun := spmd()\nsteps(2, run)\nnotebook.Check(notebook.Keep(\"run\", run))\nsteps(2, run)",
		"%%\nrun := spmd()\nnotebook.Check(notebook.Resume(\"run\", run))\nsteps(2, run)",
		`%%
backend := notebook.Must(xla.Open(xla.Devices(4)))
run := notebook.Must(ddp.New(context.Background(), backend, recipe, 2, ddp.Options{}))
notebook.Check(notebook.Resume("run", run.(notebook.Trainer)))
notebook.Check(notebook.Keep("ranks", run.(notebook.Trainer)))
back := spmd()
notebook.Check(notebook.Resume("ranks", back))
steps(1, back)`,
	}
	resident := printed(t, k, nil, cells...)
	if inProcess := printed(t, k, []string{kernel.InProcess}, cells...); strings.Join(inProcess, "|") !=
		strings.Join(resident, "|") {
		t.Errorf("with the devices in the cells:\n%q\nbeside the kernel:\n%q", inProcess, resident)
	}
	_, after, _ := strings.Cut(resident[1], "\n2 ")
	if resident[2] != "2 "+after {
		t.Errorf("the run that was kept does\n%q,\nthe other went on with\n%q", resident[2], "2 "+after)
	}
	if !strings.HasPrefix("2 "+after, resident[3]) || resident[3] == "" {
		t.Errorf("taken over by ranks and back it does %q, not %q", resident[3], after)
	}
}

// A value is stale once something that made it was declared anew, and only then.
func TestStale(t *testing.T) {
	k := kerneltest.Ready(t)
	got := printed(t, k, nil,
		"import \"github.com/shardbook/shardbook/lib/notebook\"\n\n"+
			"const a = 2\n\nvar b = 3\n\nfunc made() int { return 10 * a }",
		"%%\nnotebook.Check(notebook.Keep(\"value\", made()))",
		"var b = 4\n%%\nfmt.Println(notebook.Must(notebook.Kept[int](\"value\")))",
		"const a = 5 // another\n%%\nfmt.Println(notebook.Must(notebook.Kept[int](\"value\")))",
		"%%\nnotebook.Check(notebook.Keep(\"value\", made()))\nfmt.Println(notebook.Must(notebook.Kept[int](\"value\")))")
	want := []string{"", "", "20\n",
		"Stale: \"value\" was kept before a changed. Run the cell that keeps it again.\n20\n", "50\n"}
	if strings.Join(got, "|") != strings.Join(want, "|") {
		t.Errorf("got %q, want %q", got, want)
	}
}

// A crash on the devices is an error in the cell, and the next one has new devices and says what was lost.
func TestCrash(t *testing.T) {
	k := kerneltest.Ready(t)
	got := printed(t, k, nil, `import (
	"github.com/gomlx/compute/shapes"
	"github.com/gomlx/gomlx/core/graph"
	"github.com/gomlx/gomlx/core/tensors"
	"github.com/shardbook/shardbook/lib/native"
	"github.com/shardbook/shardbook/lib/notebook"
	"github.com/shardbook/shardbook/lib/xla"
)

const source = "const char *crash(slice_f32 y, slice_f32 z, slice_f32 x) { *(volatile int *)8 = 1; return 0; }"`,
		`%%
backend := notebook.Must(xla.Open(xla.Devices(1)))
on := notebook.Must(backend.Put(tensors.FromValue([]float32{1, 2}), 0))
notebook.Check(notebook.Keep("array", on))
notebook.Check(notebook.Keep("number", 7))
var f func(y, z, x []float32) error
library := notebook.Must(native.Load(source, native.Bind("crash", &f)))
crash := notebook.Must(library.Kernel("crash"))
program := notebook.Must(xla.CompilePortable(backend, func(x *graph.Node) []*graph.Node {
	return crash.Call([]*graph.Node{x}, []shapes.Shape{x.Shape(), x.Shape()}, nil)
}))
_, err := program.Call(0, on)
fmt.Println(err)`,
		`%%
backend := notebook.Must(xla.Open(xla.Devices(1)))
fmt.Println(backend.NumDevices(), notebook.Must(notebook.Kept[int]("number")))
_, err := notebook.Kept[*tensors.Tensor]("array")
fmt.Println(err)`)
	for i, words := range [][]string{1: {"the process has ended", "SIGSEGV"},
		2: {"The devices were opened anew", "SIGSEGV", `Lost: ["array"]`, "1 7\n", "it is lost"}} {
		for _, word := range words {
			if !strings.Contains(got[i], word) {
				t.Errorf("cell %d prints %q, want %q", i, got[i], word)
			}
		}
	}
}

// killed starts kernels, has each open devices, kills them, and waits until nothing of them is left.
const killed = `
import os, signal, subprocess, sys, time
from jupyter_client.manager import start_new_kernel

def ours(process):
    try:
        with open(f"/proc/{process}/environ", "rb") as f:
            return f"TMPDIR={tmp}".encode() in f.read().split(b"\0")
    except OSError:
        return False

def left():
    found = subprocess.run(["pgrep", "-f", "shardbook-resident (notebook|devices)"], capture_output=True, text=True)
    return list(filter(ours, found.stdout.split())), [d for d in os.listdir(tmp) if d.startswith("shardbook-")]

tmp = os.environ["TMPDIR"]
kernels = []
for _ in range(int(sys.argv[1])):
    manager, client = start_new_kernel(kernel_name="shardbook")
    client.execute_interactive('''import "github.com/shardbook/shardbook/lib/xla"

%%
fmt.Println(xla.Open(xla.Devices(2)))''', timeout=300, output_hook=lambda m: None)
    kernels.append((manager, client))
assert len(left()[0]) == 2 * len(kernels), left()
for manager, client in kernels:
    os.kill(manager.provisioner.pid, signal.SIGKILL)
end = time.monotonic() + 60
while any(left()) and time.monotonic() < end:
    time.sleep(0.1)
print(*left())
for manager, client in kernels:
    client.stop_channels()
    manager.cleanup_resources()
`

func TestKilledKernelsLeaveNothing(t *testing.T) {
	k := kerneltest.Ready(t)
	n := systest.OfFull(t, 1, strings.Split("1 2 3 4 5 6 7 8 9 10", " "))
	cmd := must.Get(k.Command(t.Context(), "python", "-c", killed, n[len(n)-1]))(t)
	cmd.Env = append(cmd.Env, "TMPDIR="+t.TempDir(), "PYTHONWARNINGS=ignore")
	out, err := cmd.Output()
	if said, ok := err.(*exec.ExitError); ok {
		t.Fatalf("%v\n%s", err, said.Stderr)
	}
	must.Do(t, err)
	if got := strings.TrimSpace(string(out)); got != "[] []" {
		t.Errorf("left after a minute: %s", got)
	}
}

// interrupted runs cells given on standard input, of which the first is interrupted once it has printed something.
const interrupted = `
import json, sys, threading
from jupyter_client.manager import start_new_kernel

manager, client = start_new_kernel(kernel_name="shardbook")
printed = []
def heard(message):
    if message["msg_type"] == "stream":
        printed.append(message["content"]["text"])
        if "begins" in printed[-1]:
            manager.interrupt_kernel()
for cell in json.load(sys.stdin):
    printed.clear()
    client.execute_interactive(cell, timeout=300, output_hook=heard)
    print("".join(printed))
client.stop_channels()
manager.shutdown_kernel()
`

// A program that cannot be interrupted ends with the process that has it, and the kernel goes on.
func TestInterrupt(t *testing.T) {
	k := kerneltest.Ready(t)
	cells := must.Get(json.Marshal([]string{`import (
	"github.com/gomlx/compute/shapes"
	"github.com/gomlx/gomlx/core/graph"
	"github.com/shardbook/shardbook/lib/native"
	"github.com/shardbook/shardbook/lib/notebook"
	"github.com/shardbook/shardbook/lib/xla"
)

const source = "#include <stdio.h>\n#include <unistd.h>\n" +
	"const char *wait_long(slice_f32 y, slice_f32 z, slice_f32 x) { fclose(fopen(PATH, \"w\")); sleep(600); return 0; }"

%%
notebook.Check(notebook.Keep("number", 7))
backend := notebook.Must(xla.Open(xla.Devices(1)))
begun := filepath.Join(os.Getenv("GONB_TMP_DIR"), ".begun")
var f func(y, z, x []float32) error
library := notebook.Must(native.Load(source, native.Bind("wait_long", &f), native.Flags("-DPATH=\""+begun+"\"")))
wait := notebook.Must(library.Kernel("wait_long"))
program := notebook.Must(xla.CompilePortable(backend, func(x *graph.Node) []*graph.Node {
	return wait.Call([]*graph.Node{x}, []shapes.Shape{x.Shape(), x.Shape()}, nil)
}))
go func() {
	for {
		if _, err := os.Stat(begun); err == nil {
			fmt.Println("begins")
			return
		}
		time.Sleep(time.Millisecond)
	}
}()
fmt.Println(program.Call(0, []float32{1, 2}))`,
		`%%
fmt.Println(notebook.Must(xla.Open(xla.Devices(1))).NumDevices(), notebook.Must(notebook.Kept[int]("number")))`}))(t)
	cmd := must.Get(k.Command(t.Context(), "python", "-c", interrupted))(t)
	cmd.Env = append(cmd.Env, "PYTHONWARNINGS=ignore")
	cmd.Stdin = strings.NewReader(string(cells))
	out, err := cmd.Output()
	if said, ok := err.(*exec.ExitError); ok {
		t.Fatalf("%v\n%s\n%s", err, out, said.Stderr)
	}
	must.Do(t, err)
	for _, word := range []string{"The devices were opened anew", "a program that was interrupted did not end", "1 7\n"} {
		if !strings.Contains(string(out), word) {
			t.Errorf("the cells print %q, want %q", out, word)
		}
	}
}
