package main

import (
	"encoding/json"
	"maps"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/shardbook/shardbook/internal/must"
	"github.com/shardbook/shardbook/lib/cost"
	"github.com/shardbook/shardbook/lib/memest"
	"github.com/shardbook/shardbook/lib/precision"
	"github.com/shardbook/shardbook/lib/recompute"
)

// printed is what estimate prints of a run that can be estimated. Its arguments are words, which may be in one text.
func printed(t *testing.T, args ...string) string {
	t.Helper()
	text, err := ran(t, append([]string{"estimate"}, words(args)...)...)
	if err != nil {
		t.Fatalf("%q: %v", args, err)
	}
	return text
}

func words(args []string) []string { return strings.Fields(strings.Join(args, " ")) }

// estimated is the one object that --json prints.
func estimated(t *testing.T, args ...string) (e estimate) {
	t.Helper()
	d := json.NewDecoder(strings.NewReader(printed(t, append(args, "--json")...)))
	d.DisallowUnknownFields()
	if err := d.Decode(&e); err != nil || d.More() {
		t.Fatalf("%q: %v, or more than one object", args, err)
	}
	return e
}

// Figure 1 of Rajbhandari et al. 2020: 120, 31.4, 16.6 and 1.9 GB for 7.5 billion parameters on 64 devices; exactly
// 16Ψ, 4Ψ+12Ψ/N, 2Ψ+14Ψ/N and 16Ψ/N. Nothing else is known, and so nothing else is listed.
func TestEstimateZeRO(t *testing.T) {
	for stage, want := range []int64{120_000_000_000, 31_406_250_000, 16_640_625_000, 1_875_000_000} {
		for _, params := range []string{"7.5e9", "7.5B", "7500000000", "7500M"} {
			e := estimated(t, "--params", params, "--data", "64", "--zero", strconv.Itoa(stage))
			if e.Total != want || e.Devices != 64 || e.Parameters != 7.5e9 || e.Unit != "bytes" || e.Model != nil {
				t.Errorf("stage %d: %+v, want %d bytes", stage, e, want)
			}
			var kinds []memest.Kind
			for _, it := range e.Items {
				kinds = append(kinds, it.Kind)
			}
			if want := []memest.Kind{memest.Parameters, memest.Master, memest.Gradients, memest.Optimizer,
				memest.Optimizer}; !slices.Equal(kinds, want) {
				t.Errorf("stage %d: lines of %q, want %q", stage, kinds, want)
			}
		}
	}
}

// runs are arguments of runs that can be estimated, of every kind.
var runs = []string{
	"--params 7.5e9 --data 64 --zero 1 --offload-optimizer",
	"--params 1e6 --precision fp32 --optimizer lion",
	"--model gpt_2 --device rtx-4090 --tokens 9B",
	"--model llama-3-8b --data 8 --zero 3 --seq 4096 --batch 2 --flash --recompute sqrt --memory 1GiB",
	"--model gpt-3-175b --data 8 --tensor 8 --pipe 8 --seq-parallel --microbatches 16 --compare",
	"--model llama-2-7b --pipe 4 --schedule interleaved --chunks 2 --microbatches 8 --context 2 --compare " +
		"--bucket 1MiB",
	"--model opt-1.3b --pipe 6 --offload-activations --offload-optimizer --precision fp16 --overhead 500MB --advise",
	"--layers 4 --d 128 --heads 4 --kv-heads 2 --hidden 300 --seq 128 --vocab 256 --gated --tied --norm rmsnorm " +
		"--positions rotary --no-bias --dropout 0.1 --clip 1 --precision fp32 --engine compiled",
	"--model deepseek-v3 --data 64 --expert-parallel 32 --zero 1 --pipe 4 --microbatches 8 --seq 4096 --flash --compare",
	"--layers 3 --d 64 --heads 4 --seq 32 --vocab 256 --gated --experts 8 --experts-per-token 2 --shared-experts 1 " +
		"--expert-hidden 32 --data 4 --expert-parallel 4 --detail",
	"--model GPT-2 --activation relu --device tpu-v5e --precision fp16 --tokens 1B --recompute plan:norm1;-*11",
}

// The lines make the totals, and the stage that is shown is the largest.
func TestEstimateAddsUp(t *testing.T) {
	for _, args := range runs {
		e := estimated(t, args)
		sum := func(items []estimateItem) (n int64) {
			for _, it := range items {
				if n += it.Bytes; it.Kind == "" || it.Name == "" || it.Formula == "" || it.Source == "" ||
					it.Count < 1 || it.Bytes < 1 || it.Stage != e.Items[0].Stage {
					t.Errorf("%q: the line %+v is not whole", args, it)
				}
			}
			return n
		}
		if total, host := sum(e.Items), sum(e.HostItems); total != e.Total || host != e.Host || total == 0 {
			t.Errorf("%s: lines of %d and %d bytes, want %d and %d", args, total, host, e.Total, e.Host)
		}
		if offloads := strings.Contains(args, "--offload-optimizer"); offloads != (e.Host > 0) {
			t.Errorf("%q: %d bytes in host memory", args, e.Host)
		}
		most := int64(0)
		for _, s := range e.Stages {
			if most = max(most, s.Bytes); s.Bytes != s.Stage.Bytes() || s.Host != s.HostBytes() {
				t.Errorf("%q: stage %d has %d and %d bytes of lines, not %d and %d", args, s.Index, s.Stage.Bytes(),
					s.HostBytes(), s.Bytes, s.Host)
			}
		}
		n := func(key string) int { return int(e.Settings[key].(float64)) }
		if most != e.Total || len(e.Stages) != n("pipe") || e.Devices != n("data")*n("tensor")*n("context")*n("pipe") {
			t.Errorf("%q: %d stages of at most %d bytes on %d devices, total %d", args, len(e.Stages), most,
				e.Devices, e.Total)
		}
		if e.Model != nil && (e.Parameters != e.Model.Params().Total() || e.WorstMoment == "") {
			t.Errorf("%q: %d parameters, most at %q", args, e.Parameters, e.WorstMoment)
		}
		if len(e.Fits) == 0 || slices.ContainsFunc(e.Fits, func(f fit) bool { return f.Fits != (e.Total <= f.Bytes) }) {
			t.Errorf("%q: %d bytes, %+v", args, e.Total, e.Fits)
		}
	}
}

// What the command says is what lib/memest says of the setup that the flags mean.
func TestEstimateIsTheLedgers(t *testing.T) {
	m := must.Get(cost.Preset("Qwen2 7B"))(t)
	l := must.Get(memest.Estimate(memest.Setup{Model: m, Batch: 3, Seq: 512, Microbatches: 5,
		Parallelism: memest.Parallelism{Data: 4, Tensor: 2, Seq: true, Context: 2, Pipeline: 2, Schedule: memest.GPipe,
			ZeRO: 2},
		Flash: true, Recompute: "halves", OffloadActivations: true, Bucket: 7e6, Framework: 1 << 30}))(t)
	e := estimated(t, "--model qwen2-7b --batch 3 --seq 512 --microbatches 5 --data 4 --tensor 2 --seq-parallel "+
		"--context 2 --pipe 2 --schedule gpipe --zero 2 --flash --recompute halves --offload-activations --bucket 7MB "+
		"--overhead 1GiB --precision fp32 --optimizer adamw")
	if e.Total != l.BytesPerDevice() || e.Host != l.Largest().HostBytes() || e.Total == 0 || e.Host == 0 {
		t.Errorf("%d and %d bytes, want %d and %d", e.Total, e.Host, l.BytesPerDevice(), l.Largest().HostBytes())
	}
}

// A file says what flags say, the settings that are printed are such a file, and flags go before it.
func TestEstimateFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "run.json")
	write := func(v any) {
		text := must.Get(json.Marshal(v))(t)
		must.Do(t, os.WriteFile(path, text, 0o644))
	}
	for _, line := range runs {
		fields, show, args := map[string]any{}, []string{}, strings.Fields(line)
		for i, arg := range args {
			name, isFlag := strings.CutPrefix(arg, "--")
			switch {
			case !isFlag:
			case name == "compare" || name == "advise":
				show = append(show, arg)
			case i+1 == len(args) || strings.HasPrefix(args[i+1], "--"):
				fields[strings.ReplaceAll(name, "-", "_")] = true
			default:
				var value any = args[i+1]
				if n := json.Number(args[i+1]); json.Valid([]byte(n)) {
					value = n
				}
				fields[strings.ReplaceAll(name, "-", "_")] = value
			}
		}
		want := printed(t, line, "--json")
		for _, file := range []any{fields, estimated(t, line).Settings} {
			write(file)
			if got := printed(t, append(show, "--file", path, "--json")...); got != want {
				t.Errorf("%s as a file %v:\n%s\nwant\n%s", line, file, got, want)
			}
		}
	}
	write(map[string]any{"params": 7.5e9, "data": 8, "zero": 1})
	if e := estimated(t, "--file", path, "--data", "64"); e.Total != 31_406_250_000 {
		t.Errorf("%d bytes with --data 64, want 31406250000", e.Total)
	}
	if e := estimated(t, "--file", path, "--zero", "0"); e.Total != 120_000_000_000 {
		t.Errorf("%d bytes with --zero 0, want 120000000000", e.Total)
	}
}

// Whatever stands in a file of settings is no more than an error of one line.
func FuzzEstimateSettings(f *testing.F) {
	for _, text := range []string{`{}`, `{"params": 7.5e9, "zero": 1}`, `{"params": "7.5B", "data": -1}`,
		`{"model": "GPT-2", "recompute": "every:2"}`,
		`{"layers": 2, "d": 8, "heads": 9223372036854775807}`, `{"clip": 1e300}`, `null`, `[]`, `{"params": {}}`,
		`{"params": 1} 2`} {
		f.Add(text)
	}
	path := filepath.Join(f.TempDir(), "run.json")
	f.Fuzz(func(t *testing.T, text string) {
		if strings.Contains(text, "config") || strings.Contains(text, "file") {
			return // no other file is to be opened
		}
		writeFile(t, path, text)
		if out, err := ran(t, "estimate", "--file", path); (err == nil) != (out != "") {
			t.Errorf("%s: printed %q, error %v", text, out, err)
		}
	})
}

func TestEstimateConfig(t *testing.T) {
	path := filepath.Join(t.TempDir(), "config.json")
	config := `{"model_type": "llama", "num_hidden_layers": 30,
		"hidden_size": 576, "num_attention_heads": 9, "num_key_value_heads": 3,
		"intermediate_size": 1536, "vocab_size": 49152, "max_position_embeddings": 8192, "tie_word_embeddings": true}`
	writeFile(t, path, config)
	if e := estimated(t, "--config", path); e.Parameters != 134_515_008 { // SmolLM 135M, as its weights have
		t.Errorf("%d parameters", e.Parameters)
	}
}

// An activation that is given goes before the model's own: OPT has ReLU, GPT-2 GELU, and Llama a gate with SiLU.
func TestEstimateActivation(t *testing.T) {
	for _, c := range []struct{ model, given, want string }{
		{"opt-1.3b", "", "relu"}, {"opt-1.3b", "usual", "gelu"}, {"gpt-2", "", "gelu"}, {"gpt-2", "relu", "relu"},
		{"llama-2-7b", "usual", "silu"}, {"llama-2-7b", "relu", "relu"},
	} {
		args := []string{"--model", c.model}
		if c.given != "" {
			args = append(args, "--activation", c.given)
		}
		e := estimated(t, args...)
		m, err := cost.Preset(c.model)
		must.Do(t, err)
		own := m.Activation
		if m.Activation = c.want; e.Model.Activation != c.want {
			t.Errorf("%s with %q has %q, want %q", c.model, c.given, e.Model.Activation, c.want)
		}
		policy := must.Get(precision.ParsePolicy("bf16"))(t)
		l, err := memest.Estimate(memest.Setup{Model: m, Precision: policy})
		if err != nil || e.Total != l.BytesPerDevice() {
			t.Errorf("%s with %q: %d bytes, want %d, error %v", c.model, c.given, e.Total, l.BytesPerDevice(), err)
		}
		if plain := estimated(t, "--model", c.model); (plain.Total == e.Total) != (own == c.want) {
			t.Errorf("%s with %q: %d bytes, and %d with its own", c.model, c.given, e.Total, plain.Total)
		}
	}
	const sizes = "--layers 2 --d 64 --heads 2 --seq 32 --vocab 256"
	gelu, relu := estimated(t, sizes), estimated(t, sizes, "--activation relu")
	if relu.Total >= gelu.Total || relu.Model.Activation != "relu" {
		t.Errorf("%d bytes with %s, %d with %s", gelu.Total, gelu.Model.Activation, relu.Total, relu.Model.Activation)
	}
}

// Of the policies that fit, the one that is chosen is in the settings, which then need no choice.
func TestEstimateChoosesRecomputation(t *testing.T) {
	const args = "--layers 4 --d 128 --heads 4 --seq 256 --vocab 256"
	all, block := estimated(t, args).Total, estimated(t, args, "--recompute block").Total
	for _, c := range []struct {
		memory int64
		fits   bool
		want   func(recompute.Policy) bool
	}{
		{all, true, func(p recompute.Policy) bool { return p == "none" }},
		{all - 1, true, func(p recompute.Policy) bool { return p != "none" && p != "block" }},
		{(all + block) / 2, true, func(p recompute.Policy) bool { return p != "none" && p != "block" }},
		{block / 2, false, func(p recompute.Policy) bool { return p == "block" }},
	} {
		with := func(p string) estimate {
			return estimated(t, args, "--memory", strconv.FormatInt(c.memory, 10), "--recompute", p)
		}
		e := with("auto")
		chosen := e.Settings["recompute"].(string)
		if e.Fits[0].Fits != c.fits || !c.want(recompute.Policy(chosen)) || (e.RecomputeNote == "") != c.fits ||
			(e.Advice == nil) != c.fits {
			t.Errorf("%d bytes: recompute %q needs %d, note %q, %d changes", c.memory, chosen, e.Total,
				e.RecomputeNote, len(e.Advice))
		}
		if again := with(chosen); again.Total != e.Total || !maps.Equal(again.Settings, e.Settings) {
			t.Errorf("%d bytes: %d as it was chosen, %d as it was printed", c.memory, e.Total, again.Total)
		}
	}
}

// Where no single change is enough, changes are made one after another until the run fits, or nothing saves more.
func TestEstimateCombinesAdvice(t *testing.T) {
	for memory, want := range map[string]struct{ single, chain, fits bool }{
		"40GB": {single: true, fits: true}, "1GB": {chain: true, fits: true}, "1MB": {chain: true}, "1TB": {},
	} {
		e := estimated(t, "--model llama-3-8b --data 64 --seq 4096 --memory", memory)
		fits := func(c change) bool { return *c.Fits }
		n, last := len(e.Combined), e.Total
		if slices.ContainsFunc(e.Advice, fits) != want.single || n > 0 != want.chain {
			t.Errorf("%s: advice %+v, together %+v", memory, e.Advice, e.Combined)
		}
		for i, c := range e.Combined {
			if c.Bytes >= last || fits(c) != (want.fits && i == n-1) {
				t.Errorf("%s: %+v after %d bytes", memory, c, last)
			}
			last = c.Bytes
		}
	}
}

// Training on 300 billion tokens takes 6·N·D operations where nothing but N is known; an H100's peak is 989.4e12.
func TestEstimateTraining(t *testing.T) {
	const run = "--params 7B --data 16 --tokens 300B --device h100-sxm"
	const seconds = 6 * 7e9 * 300e9 / (16 * 989.4e12 * 0.4)
	c := estimated(t, run).Compute
	if c.FLOPsPerToken != 42e9 || c.Tokens != 300e9 || c.FLOPs != 42e9*300e9 ||
		math.Abs(float64(c.Seconds)/seconds-1) > 1e-6 {
		t.Errorf("%+v, want %g seconds", c, seconds)
	}
	// Google publishes a peak for bfloat16 alone.
	const unknown = "--model GPT-2 --device tpu-v4 --precision fp32 --tokens 1B"
	if c := estimated(t, unknown).Compute; c.FLOPs != 1e9*c.FLOPsPerToken || c.Seconds != 0 || c.Utilization != 0 {
		t.Errorf("%+v, want no time", c)
	}
	for args, want := range map[string]string{run: "16 × H100 SXM at 40% of their peak that is 23 days",
		unknown: "\nHow long that takes is not known: cost: TPU v4 has no peak for \"fp32\""} {
		if text := printed(t, args); !strings.Contains(text, want) {
			t.Errorf("no %q in:\n%s", want, text)
		}
	}
	if c := estimated(t, "--model GPT-2").Compute; c.FLOPsPerToken < 6*124e6 || c.FLOPs != 0 || c.Seconds != 0 {
		t.Errorf("%+v", c)
	}
}

// People get bars, then tables, in one unit.
func TestEstimateText(t *testing.T) {
	for args, wants := range map[string][]string{
		"--params 7.5e9 --data 64 --zero 1": {
			"7 500 000 000 parameters, bf16, adamw\ndevices: 64, data 64, ZeRO stage 1\n",
			"Memory of a device in GB (10⁹ bytes)",
			"parameters     " + strings.Repeat("█", 48) + "     15.00   48%\nmaster copy    █▌ ",
			"\n               v of all parameters                                1        0.47\n",
			"\ntotal of a device                                                         31.41\n",
			"These are states alone",
			"RTX 4090                   25.77   122%  does not fit\nTPU v4                     34.36    91%\n",
			"Training takes 4.5e+10 FLOPs a token by the rule of 6"},
		"--params 7.5e9 --data 64 --zero 1 --units gib --memory 32GiB": {
			"Memory of a device in GiB (2³⁰ bytes)",
			"total of a device                                                         29.25\n",
			"It fits: 29.25 is 91% of the memory's 32.00 GiB."},
		"--params 7.5e9 --device h100-sxm": {"devices: 1, the full model",
			"It does not fit: 120.00 is 34.10 more than H100 SXM's 85.90 GB.", "For advice on what to change"},
		"--model llama-3-8b --data 8 --device h100-sxm --seq 4096 --recompute block --flash": {
			"Llama 3 8B, 8 030 261 248 parameters", "passes: 1 × 4096 tokens, recompute block, flash attention",
			"more lines (--detail)", "Most is needed at ", "It does not fit", "what to change", "ZeRO stage 3 ",
			" yes  1.5 times the traffic", "8-bit Adam"},
		"--model GPT-2 --advise --memory 80GB": {"It fits", "flash attention"},
		"--model opt-30b --pipe 24 --microbatches 2 --offload-optimizer --batch 2": {
			"2 micro-batches of 2 × 2048 tokens, 1f1b, optimizer offloaded", "host memory for each device",
			"\nstage  blocks\n    0  0 to 1 ", "   15  30 to 31 ", "and 8 more, with no more than"},
		"--layers 2 --d 64 --heads 2 --seq 32 --vocab 4096 --detail --offload-activations " +
			"--recompute plan:norm1,norm2,scores,act;-": {
			"mlp                                                2     0.00013\n    2*(h*f/t+f/t+f/t*h+h)\n    h=64, " +
				"f=256, t=1\n    one number each",
			"(host memory)", "recompute plan:norm1,norm2,scores,act;-,"},
		"--layers 2 --d 64 --heads 2 --seq 32 --vocab 256 --recompute plan:norm1,norm2,scores,act,up;-": {
			"recompute plan:norm1,norm2,scores,act,u…\n"},
		"--model gpt-3-175b --tensor 8 --pipe 8 --zero 3 --data 2 --compare --recompute halves": {
			"by published conventions, in GB           states activations       other\nshardbook ", "\nZeRO paper ",
			"\nDeepSpeed ", "\naccelerate, on one device ", "\ncourse notes, printed total ",
			"Korthikanti et al. 2022 does not apply: it supports recomputation"},
		"--model gpt-3-175b --tensor 8 --pipe 8 --microbatches 8 --compare --activation relu": {
			", activation relu, 1f1b", "\nKorthikanti et al. 2022                        –"},
		"--model llama-3-8b --data 64 --seq 4096 --memory 1GB": {
			"\ntogether, one after another            GB fits  what it costs\ntensor parallelism ",
			" yes  a bubble\nTogether they fit.\n"},
		"--model llama-3-8b --memory 1MB --recompute auto": {
			"the memory's 0.00 GB.\nNo recomputation was found that alone makes it fit; this is with \"block\".\n",
			"\nTogether they do not fit either"},
		"--model mixtral-8x7b --data 8 --expert-parallel 8 --seq 4096 --compare": {
			"Mixtral 8x7B, 46 702 792 704 parameters, bf16, adamw\n" +
				"active: 12 879 925 248 parameters a token, 2 of 8 experts\ndevices: 8, data 8, expert 8\n",
			"\nparameters     experts                                           32       11.27\n",
			"ZeRO paper does not apply: it does not support expert parallelism",
			"course notes, printed total does not apply: it is for models without experts",
			"Korthikanti et al. 2022 does not apply: memest: Korthikanti.Model has 8 experts"},
		"--model DeepSeek-V3 --seq 4096": {
			"\nactive: 37 552 297 472 parameters a token, 8 of 256 experts and 1 shared\n"},
		"--list-models": {"\nMixtral 8x7B           46 702 792 704 parameters,  32 blocks of width 4096, MoE\n",
			"GPT-2                     124 439 808 parameters,  12 blocks of width 768\n",
			"Llama 3.1 405B "},
	} {
		text := printed(t, args)
		for _, want := range wants {
			if !strings.Contains(text, want) {
				t.Errorf("%s: no %q in:\n%s", args, want, text)
			}
		}
		gib := regexp.MustCompile(`\bGiB\b`).MatchString(text)
		if gb := regexp.MustCompile(`\bGB\b`).MatchString(text); gb && gib {
			t.Errorf("%s: both units in:\n%s", args, text)
		}
		for line := range strings.Lines(text) {
			wide := strings.Contains(args, "--detail") || strings.Contains(line, "does not apply")
			if n := utf8.RuneCountInString(strings.TrimSuffix(line, "\n")); n > 80 && !wide {
				t.Errorf("%s: a line of %d columns: %s", args, n, line)
			}
		}
	}
}

func TestEstimateListsModels(t *testing.T) {
	var list struct {
		Models []struct {
			Name   string
			Params int64
			Active int64
		}
	}
	must.Do(t, json.Unmarshal([]byte(printed(t, "--list-models", "--json")), &list))
	if len(list.Models) != len(cost.Presets()) {
		t.Errorf("%d models, want %d", len(list.Models), len(cost.Presets()))
	}
	for _, m := range list.Models {
		if e := estimated(t, "--model", strings.ReplaceAll(m.Name, " ", "-"), "--seq 128"); e.Parameters != m.Params ||
			e.Active != m.Active {
			t.Errorf("%s: %d parameters, %d active, want %d and %d", m.Name, e.Parameters, e.Active, m.Params, m.Active)
		}
	}
}

// The flags of experts describe a model of their own, in which each block has experts instead of an MLP.
func TestEstimateExperts(t *testing.T) {
	const sizes = "--layers 3 --d 64 --heads 4 --seq 32 --vocab 256 --gated --no-bias "
	before := estimated(t, sizes, "--hidden 32")
	e := estimated(t, sizes, "--experts 8 --experts-per-token 2 --shared-experts 1 --expert-hidden 32")
	const router, expert = 64 * 8, 3 * 64 * 32 // the MLP is as large as an expert
	if got, want := e.Parameters, before.Parameters+3*(router+8*expert); got != want {
		t.Errorf("%d parameters, want %d", got, want)
	}
	if got, want := e.Active, before.Parameters+3*(router+2*expert); got != want {
		t.Errorf("%d active, want %d", got, want)
	}
	if got, want := e.Compute.FLOPsPerToken-before.Compute.FLOPsPerToken, 6.*3*(router+2*expert); got != want {
		t.Errorf("experts take %g FLOPs a token, want %g", got, want)
	}
	for args, want := range map[string]string{
		"--experts 8 --experts-per-token 9":                              "--experts-per-token is 9 of 8 experts",
		"--experts 8 --dense-layers 3":                                   "--shared-experts is 0 and --dense-layers 3, of 3 layers",
		"--model GPT-2 --router sigmoid":                                 "both describe the model",
		"--experts 8 --experts-per-token 2 --expert-parallel 2":          "does not divide the 1 data-parallel devices",
		"--experts-per-token 2":                                          "changes nothing without --experts",
		"--data 2 --expert-parallel 2":                                   "the model has no experts",
		"--experts 8 --experts-per-token 2 --engine compiled":            "was not measured",
		"--experts 8 --experts-per-token 2 --data 3 --expert-parallel 3": "does not divide the model's 8 experts",
	} {
		_, err := ran(t, append([]string{"estimate"}, words([]string{sizes, args})...)...)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error %v, want %q", args, err, want)
		}
	}
}

// In a process of its own the command opens no device, and its errors are the process's.
func TestEstimateProcess(t *testing.T) {
	env := []string{"SHARDBOOK_PLUGIN=/no/such/plugin.so"}
	stdout, stderr, status := shardbook(t, env, "estimate", "--params", "7.5e9", "--json")
	if status != 0 || stderr != "" || strings.Count(stdout, "\n") != 1 || !strings.Contains(stdout,
		`"total_bytes_per_device":120000000000,`) {
		t.Errorf("status %d, %s%s", status, stdout, stderr)
	}
	stdout, stderr, status = shardbook(t, env, "estimate", "--params", "7.5e9", "--devices", "8", "--json")
	if status != 1 || stdout != "" || !strings.Contains(stderr, "--data 8") {
		t.Errorf("status %d, %s%s", status, stdout, stderr)
	}
}
