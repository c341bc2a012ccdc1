package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/spf13/pflag"

	"github.com/shardbook/shardbook/kernel"
)

// newCell measures how long the user of a notebook waits for a cell. Each implementation is a kernel of its own, which
// is warm: it has run the cell before. Before each run a string in the cell is edited, so that what a kernel knows of
// equal cells does not help. The other cells are compared by their costs, the time over that of println.
func newCell() *benchmark {
	return &benchmark{name: "cell",
		about: "an edited cell of a notebook in a warm kernel, from the request to its output",
		flags: func(*pflag.FlagSet) {},
		cases: func() ([]testCase, error) { return []testCase{{name: "a string is edited"}}, nil },

		implementations: cellImplementations, targets: cellTargets}
}

// Limits of what a cell on XLA should take.
const (
	cellMS   = 1000 // milliseconds
	cellCost = 4    // times println
)

func cellTargets(records []record) (all []target) {
	for _, r := range records {
		if r.Impl == "xla" {
			all = append(all, target{fmt.Sprintf("xla takes at most %.1f s", cellMS/1e3), r.MedianMS <= cellMS},
				target{fmt.Sprintf("xla takes at most %d times println", cellCost), r.Cost <= cellCost})
		}
	}
	return all
}

// cellJob tells peers/cell.py what to run.
type cellJob struct {
	Kernel   string   `json:"kernel"`             // the name of its kernelspec
	Setup    string   `json:"setup,omitempty"`    // a cell that is run once
	Cell     string   `json:"cell"`               // "EDIT" in it stands for a text that is never the same
	Prints   string   `json:"prints"`             // all that the cell prints
	Displays int      `json:"displays"`           // how many charts it shows
	Versions versions `json:"versions,omitempty"` // Python's packages if there are none
}

// printed is what the cells print that compute: the edited text, and the last element of the product, which is the sum
// of (k mod 10)·(6k+5 mod 10) over k from 0 to 255.
const printed = "EDIT 6210\n"

// What our cells and those of the peers do is the same: a matrix times itself, each device with a part of the columns
// of the first and of the rows of the second, and an all-reduce of the products.
const (
	xlaSetup = `import (
	"fmt"

	"github.com/gomlx/gomlx/core/graph"
	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/lib/chart"
	"github.com/shardbook/shardbook/lib/collective"
	"github.com/shardbook/shardbook/lib/notebook"
	"github.com/shardbook/shardbook/lib/xla"
)

func digits(n int) *tensors.Tensor {
	flat := make([]float32, n*n)
	for i := range flat {
		flat[i] = float32(i % 10)
	}
	return tensors.FromFlatDataAndDimensions(flat, n, n)
}

func product(x, w *graph.Node) *graph.Node {
	return collective.AllReduce(graph.Dot(x, w).Product(), collective.Sum, "model")
}`
	xlaCell = `%%
backend := notebook.Must(xla.Open(xla.Devices(4)))
defer backend.Close()
mesh := notebook.Must(backend.Mesh(xla.Axis("model", 4)))
program := notebook.Must(xla.Compile(mesh, product,
	xla.In(xla.Shard(1, "model"), xla.Shard(0, "model")).Gives(xla.Replicated())))
outputs := notebook.Must(program.Call(digits(256), digits(256)))
y := tensors.MustCopyFlatData[float32](outputs[0].Shards()[0])
`
	xlaPrint = `fmt.Println("EDIT", y[len(y)-1])`
	xlaChart = `var row chart.Series
for _, value := range y[:256] {
	row.Y = append(row.Y, float64(value))
}
chart.Show(chart.Line("Row 0", "column", "product", row))
`

	jaxSetup = `import jax, numpy as np
from jax.sharding import Mesh, PartitionSpec as P

def digits(n):
    return np.resize(np.arange(10, dtype=np.float32), (n, n))

product = jax.jit(jax.shard_map(lambda x, w: jax.lax.psum(x @ w, "model"), out_specs=P(),
    mesh=Mesh(np.array(jax.devices()), ("model",)), in_specs=(P(None, "model"), P("model"))))`
	jaxCell = `y = np.asarray(product(digits(256), digits(256)))
print("EDIT", int(y[-1, -1]))`

	rustSetup = `fn digits(n: usize) -> Vec<f32> { (0..n * n).map(|i| (i % 10) as f32).collect() }
fn product(x: &[f32], w: &[f32], n: usize) -> Vec<f32> {
    let mut y = vec![0.0; n * n];
    for i in 0..n {
        for k in 0..n {
            for j in 0..n {
                y[i * n + j] += x[i * n + k] * w[k * n + j];
            }
        }
    }
    y
}
let x = digits(256);`
	rustCell = `let y = product(&x, &x, 256);
println!("EDIT {}", y[y.len() - 1]);`
)

func cellImplementations() []implementation {
	const printing, computing, plain = "print", "compute", "println"
	inGo := func(job cellJob) commands {
		job.Kernel, job.Versions = kernel.Name, loaded
		return job.with(func(context.Context, place) ([]string, error) { return nil, nil })
	}
	inRust := func(job cellJob) commands {
		job.Kernel, job.Versions = evcxrName, versions{evcxrName: evcxrVersion}
		return job.with(evcxrEnv)
	}
	return []implementation{
		{name: plain, about: "fmt.Println in this project's kernel", role: ours, class: printing,
			commands: inGo(cellJob{Cell: "%%\nfmt.Println(\"EDIT\")", Prints: "EDIT\n"})},
		{name: "xla", about: "opens 4 devices and runs a program that the cache folder has", role: ours,
			class: computing, over: plain,
			commands: inGo(cellJob{Setup: xlaSetup, Cell: xlaCell + xlaPrint, Prints: printed})},
		{name: "chart", about: "the same with a chart", role: variant, class: computing, over: plain,
			commands: inGo(cellJob{Setup: xlaSetup, Cell: xlaCell + xlaChart + xlaPrint, Prints: printed,
				Displays: 1})},
		{name: "jax", about: "the same product in ipykernel, by a program of an earlier cell", role: peer,
			class: computing, over: plain,
			commands: cellJob{Kernel: "python3", Setup: jaxSetup, Cell: jaxCell, Prints: printed}.with(jaxEnv)},
		{name: "evcxr", about: "println! in the Rust kernel", role: peer, class: printing,
			commands: inRust(cellJob{Cell: `println!("EDIT");`, Prints: "EDIT\n"})},
		{name: "evcxr-matmul", about: "the same product in the Rust kernel, by loops", role: peer, class: computing,
			over: plain, commands: inRust(cellJob{Setup: rustSetup, Cell: rustCell, Prints: printed})},
	}
}

// with starts the script, which starts the kernel, in JupyterLab's Python, with more in its environment.
func (job cellJob) with(env func(context.Context, place) ([]string, error)) commands {
	return func(ctx context.Context, p place) ([]*exec.Cmd, error) {
		text, err := json.Marshal(job)
		if err != nil {
			return nil, err
		}
		more, err := env(ctx, p)
		if err != nil {
			return nil, err
		}
		cmd, err := kernelPython(ctx, more, filepath.Join(p.scripts, "cell.py"), string(text))
		return []*exec.Cmd{cmd}, err
	}
}

// kernelPython is a command in the Python of JupyterLab, which finds the project's kernel.
func kernelPython(ctx context.Context, env []string, args ...string) (*exec.Cmd, error) {
	k, err := kernel.New(".", "")
	if err != nil {
		return nil, err
	}
	cmd, err := k.Command(ctx, "python", args...)
	if err != nil {
		return nil, err
	}
	cmd.Env = append(cmd.Env, env...)
	return cmd, nil
}

// jaxEnv adds the peers' packages to JupyterLab's Python, which has ipykernel.
func jaxEnv(ctx context.Context, p place) ([]string, error) {
	const script = "import sysconfig; print(sysconfig.get_path('purelib'))"
	folder, err := exec.CommandContext(ctx, p.python, "-c", script).Output()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", p.python, err)
	}
	env := []string{"PYTHONPATH=" + strings.TrimSpace(string(folder)), "JAX_PLATFORMS=cpu",
		"XLA_FLAGS=--xla_force_host_platform_device_count=4"}
	try, err := kernelPython(ctx, env, "-c", "import jax")
	if err != nil {
		return nil, err
	}
	if said, err := try.CombinedOutput(); err != nil { // the two Pythons may be of different versions
		return nil, errUnsupported(fmt.Sprintf("JupyterLab's Python cannot import JAX from %s: %s", folder, said))
	}
	return env, nil
}
