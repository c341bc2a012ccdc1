package main

import (
	"encoding/json"
	"math"
	"strings"
	"testing"

	"github.com/gomlx/gomlx/core/graph"

	"github.com/shardbook/shardbook/internal/devicetest"
	"github.com/shardbook/shardbook/internal/job"
	"github.com/shardbook/shardbook/internal/must"
	"github.com/shardbook/shardbook/internal/systest"
	"github.com/shardbook/shardbook/lib/xla"
)

// TestCompileFor compiles the steps whose temporary memory an H100 with the same plugin has reported (docs/cuda.md). It
// left out conversions that are now kept.
func TestCompileFor(t *testing.T) {
	devicetest.OpenFor(t, "h100", 1) // or skipped
	for _, c := range systest.OfFull(t, 1, []struct {
		flash string
		want  float64 // MB
	}{{"on", 748}, {"off", 1823}}) {
		printed := must.Get(ran(t, strings.Fields("train --layers 4 --d 512 --heads 8 --seq 1024 --batch 8 --precision bf16 "+
			"--compile-for h100 --json --text reference --flash="+c.flash)...))(t)
		var got compiledFor
		must.Do(t, json.Unmarshal([]byte(printed), &got))
		if mb := float64(got.Temporary) / 1e6; math.Abs(mb/c.want-1) > 0.02 || got.GPU != "h100" || got.Devices != 1 {
			t.Errorf("--flash=%s: %+v, want %g MB of temporary memory", c.flash, got, c.want)
		}
	}
}

// With --precision tf32, matmuls on a GPU are its own, not simulated.
func TestTF32OnGPUs(t *testing.T) {
	devicetest.OpenFor(t, "h100", 1) // or skipped
	for name, want := range map[string]bool{"fp32": false, "tf32": true, "TF32": true} {
		run := training{job: &job.Job{Precision: name}, options: trainOptions{compileFor: "h100"}}
		backend := must.Get(run.openDevices(t.Context(), 1, 1))(t)
		defer backend.Close()
		if got := xla.HasTF32(graph.NewGraph(backend, name)); got != want {
			t.Errorf("--precision %s: TF32 is %v", name, got)
		}
	}
}

func TestCompileForTrainsNothing(t *testing.T) {
	_, err := ran(t, "train", "--compile-for", "h100", "--checkpoint", t.TempDir()+"/new")
	must.Refuse(t, "a checkpoint", err, "leave out --checkpoint")
	_, err = ran(t, "train", "--compile-for", "k80")
	must.Refuse(t, "another GPU", err, "k80", "h100")
}
