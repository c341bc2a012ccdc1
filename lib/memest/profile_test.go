package memest

import (
	"encoding/csv"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/shardbook/shardbook/internal/must"
	"github.com/shardbook/shardbook/lib/cost"
)

// row is a line of a published table, by the names of its columns.
type row struct {
	t      testing.TB
	fields map[string]string
}

func (r row) text(column string) string {
	r.t.Helper()
	text, ok := r.fields[column]
	if !ok {
		r.t.Fatalf("no column %q", column)
	}
	return text
}

func (r row) number(column string) int64 {
	r.t.Helper()
	n, err := strconv.ParseInt(r.text(column), 10, 64)
	if err != nil {
		r.t.Fatal(err)
	}
	return n
}

// publishedTable reads a table of published numbers. Its first line names the source.
func publishedTable(t testing.TB, name string) []row {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", name))
	must.Do(t, err)
	if !strings.HasPrefix(string(text), "# source: ") {
		t.Fatalf("%s does not begin with its source", name)
	}
	reader := csv.NewReader(strings.NewReader(string(text)))
	reader.Comment = '#'
	lines, err := reader.ReadAll()
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	if len(lines) < 2 {
		t.Fatalf("%s has no rows", name)
	}
	var rows []row
	for _, line := range lines[1:] {
		fields := map[string]string{}
		for i, column := range lines[0] {
			fields[column] = line[i]
		}
		rows = append(rows, row{t, fields})
	}
	return rows
}

// listed returns the items, and fails the test on an error.
func listed(t testing.TB) func([]Item, error) Stage {
	return func(items []Item, err error) Stage {
		t.Helper()
		must.Do(t, err)
		return Stage{Items: items}
	}
}

// Random settings of every published formula: each item follows from its own formula and values, or there is an error
// that names the type. None panics or overflows.
func TestPublishedRandomly(t *testing.T) {
	random := rand.New(rand.NewPCG(31, 32))
	number := func() int64 {
		switch random.IntN(8) {
		case 0:
			return []int64{0, -1, math.MinInt64, math.MaxInt64, math.MaxInt32}[random.IntN(5)]
		case 1:
			return 1 << random.IntN(62)
		}
		return 1 + random.Int64N(64)
	}
	flip := func() bool { return random.IntN(2) == 0 }
	valid := map[string]int{}
	for range 3000 {
		heads := int(min(number(), 1<<10))
		model := cost.Model{Layers: 12, Width: heads, Heads: heads, Vocab: int(number()), Context: 64}
		notes := Notes{0, int(number()), int(number()), int(number()), int(number()), int(number()), 1 + random.IntN(4)}
		reading := Readings()[random.IntN(5)]
		counts := map[string]func() ([]Item, error){
			"ZeRO":  ZeRO{number(), random.IntN(5) - 1, int(number())}.States,
			"Notes": func() ([]Item, error) { return notes.Activations(reading) },
			"Korthikanti": Korthikanti{Model: model, Batch: int(number()), Seq: int(number()), Tensor: int(number()),
				SequenceParallel: flip(), Pipeline: random.IntN(4), Chunks: random.IntN(4)}.FirstStage,
			"DeepSpeed": DeepSpeed{Stage: 1 + random.IntN(3), Params: number(), LargestLayer: number(),
				GPUsPerNode: int(number()),
				Nodes:       int(number()), OffloadOptimizer: flip(), OffloadParams: flip(), ZeroInit: flip()}.States,
			"Accelerate": Accelerate{number(), []string{"float32", "float16", "int8"}[random.IntN(3)]}.Training,
		}
		for name, count := range counts {
			items, err := count()
			if err != nil {
				if !strings.HasPrefix(err.Error(), "memest: ") && !strings.HasPrefix(err.Error(), "cost: Model.") ||
					len(items) != 0 {
					t.Fatalf("%s: error %q with %d lines", name, err, len(items))
				}
				continue
			}
			valid[name]++
			total := int64(0)
			for _, it := range items {
				if bytes := recomputed(t, it); bytes != it.Bytes || it.Bytes < 1 || it.Source == "" || it.Name == "" {
					t.Fatalf("%s: %+v: its formula gives %d bytes", name, it, bytes)
				}
				if total += it.Bytes; total < 0 {
					t.Fatalf("%s: the sum overflows", name)
				}
			}
		}
	}
	if len(valid) != 5 {
		t.Errorf("only %v were ever valid", valid)
	}
}

// recomputed computes an item from its count, formula and values alone.
func recomputed(t testing.TB, it Item) int64 {
	v := vars{}
	for _, pair := range strings.Split(it.Values, ", ") {
		name, value, _ := strings.Cut(pair, "=")
		n, err := strconv.ParseInt(value, 10, 64)
		if err != nil {
			t.Fatalf("%+v: %v", it, err)
		}
		v[name] = n
	}
	one := must.Get(v.compute(it.Formula))(t)
	return it.Count * one.bytes
}

func TestPublishedCountErrors(t *testing.T) {
	gpt := cost.Model{Layers: 12, Width: 12, Heads: 4, Vocab: 256, Context: 10}
	notes := Notes{Params: 1, Layers: 1, Width: 1, Heads: 1, Sequence: 1, Batch: 1, Precision: 4}
	for _, c := range []struct {
		count func() ([]Item, error)
		want  string
	}{
		{ZeRO{}.States, "memest: ZeRO.Params is 0: set it to at least 1"},
		{ZeRO{Params: 1<<56 + 1, Devices: 1}.States, "memest: ZeRO.Params is 72057594037927937: set it to at most " +
			"72057594037927936"},
		{ZeRO{Params: 1, Stage: 4, Devices: 1}.States, "memest: ZeRO.Stage is 4: set it to at most 3"},
		{ZeRO{Params: 1, Devices: -1}.States, "memest: ZeRO.Devices is -1: set it to at least 1"},
		{Notes{}.States, "memest: Notes.Params is 0: set it to at least 1"},
		{func() ([]Item, error) { return Notes{}.Activations(HiddenCode) },
			"memest: Notes.Layers is 0: set it to at least 1"},
		{func() ([]Item, error) { return notes.Activations(Approximation) },
			"memest: Notes.Precision is 4: set it to 2 for the approximation"},
		{func() ([]Item, error) { return notes.Activations("") },
			"memest: unknown reading \"\" of the notes: choose one of " +
				`["norms together" "norms each" "printed total" "approximation" "code in a comment"]`},
		{Korthikanti{}.Layer, "cost: Model.Layers is 0: set it to at least 1"},
		{Korthikanti{Model: gpt, Batch: -2}.Layer, "memest: Korthikanti.Batch is -2: set it to at least 1"},
		{Korthikanti{Model: gpt, Tensor: 3}.Layer, "memest: Korthikanti.Tensor is 3, which does not divide the " +
			"model's 4 heads"},
		{Korthikanti{Model: gpt, Tensor: 4, SequenceParallel: true}.Layer,
			"memest: Korthikanti.Tensor is 4, which does not divide the sequence of 10 tokens"},
		{Korthikanti{Model: gpt, Pipeline: 3, Chunks: 3}.FirstStage,
			"memest: Korthikanti.Pipeline is 3 with Chunks 3, and 9 does not divide the model's 12 layers"},
		{Korthikanti{Model: gpt, Chunks: 2}.FirstStage,
			"memest: Korthikanti.Chunks is 2 without a pipeline: set Pipeline to at least 2"},
		{Korthikanti{Model: gpt, Recompute: "all"}.Layer,
			`memest: Korthikanti.Recompute is "all": set it to "", "selective" or "full"`},
		{Korthikanti{Model: gpt, Batch: 1 << 31, Seq: 1 << 28}.Layer,
			"memest: 2*s*b*h bytes overflow an int64, with s=268435456, b=2147483648, h=12: make the model, the " +
				"batch or the sequence smaller"},
		{Korthikanti{Model: gpt, Batch: 1 << 31, Seq: 1 << 14}.FirstStage,
			"memest: Korthikanti et al. 2022, §4.2.3 and §4.3: the sum of all bytes overflows an int64: make the " +
				"model, the batch or the sequence smaller"},
		{DeepSpeed{}.States, "memest: DeepSpeed.Stage is 0: set it to at least 2"},
		{DeepSpeed{Stage: 3, Params: 2, LargestLayer: 3}.States,
			"memest: DeepSpeed.LargestLayer is 3: set it to at most 2"},
		{DeepSpeed{Stage: 2, Params: 2, Nodes: -1}.States, "memest: DeepSpeed.Nodes is -1: set it to at least 1"},
		{DeepSpeed{Stage: 2, Params: 2, OffloadOptimizer: true, OffloadParams: true}.States,
			"memest: DeepSpeed.OffloadParams is set with stage 2: choose stage 3"},
		{DeepSpeed{Stage: 2, Params: 2, ZeroInit: true}.States,
			"memest: DeepSpeed.ZeroInit is set with stage 2: choose stage 3"},
		{DeepSpeed{Stage: 3, Params: 2, LargestLayer: 2, OffloadParams: true}.States,
			"memest: DeepSpeed.OffloadParams is set without OffloadOptimizer: set both"},
		{Accelerate{}.Training, "memest: Accelerate.Size is 0: set it to at least 1"},
		{Accelerate{Size: 1, DType: "int8"}.Training,
			`memest: Accelerate.DType is "int8": set it to "float32" or "float16"`},
	} {
		items, err := c.count()
		if err == nil || err.Error() != c.want || items != nil {
			t.Errorf("%d lines and error\n%v, want\n%s", len(items), err, c.want)
		}
	}
}
