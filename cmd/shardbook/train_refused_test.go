package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/shardbook/shardbook/lib/xla"
)

// refused lists flags and the expected text of their error: a line for each check of the command and of the libraries.
const refused = `
--text EMPTY                                        | is empty: choose
--text SHORT                                        | 5 bytes
--text SHORT/below                                  | SHORT/below
--text=                                             | --text is empty
--text reference --text-bytes 3                     | --text-bytes=3
--text-bytes -1                                     | --text-bytes=-1: want at least 0
--checkpoint /sys                                   | --checkpoint: 
--checkpoint USED/below                             | USED
--resume                                            | --checkpoint DIR
--grace -1s                                         | --grace=-1s: want at least 0s
--steps 0                                           | --steps=0: want at least 1
--steps many                                        | "many" for "--steps"
--devices 2                                         | --devices=2: the layout needs 1
--log USED                                          | choose another
--trace USED --data 2                               | --trace: USED
--sample 1 --prompt=                                | --prompt is empty
--top-k -1                                          | TopK is -1
--temperature NaN                                   | Temperature is NaN
--chart loss.png                                    | want a file with the extension .html or .svg
--reference --lr 1                                  | --lr and --reference
surplus                                             | surplus

--heads 5                                           | --heads is 5
--d 9223372036854775783 --heads 4611686018427387904 | at most
--batch 9223372036854775807                         | choose at most 2147483648 tokens
--norm batch                                        | --norm is "batch"
--dropout 1                                         | --dropout is 1
--flash --dropout 0.1                               | --dropout is 0.1 with --flash
--flash --precision tf32                            | --precision is set with --flash
--recompute half                                    | --recompute: 
--activation tanh                                   | --activation is "tanh"
--compress zip                                      | --compress: 
--compress-relu zip --activation relu               | --compress-relu: 
--compress-relu csr:1                               | set --activation to "relu"
--precision fp7                                     | --precision: 
--loss-scale big                                    | --loss-scale=big: want none, dynamic or a number
--loss-scale -2                                     | -2
--stochastic-rounding                               | StochasticUpdate
--optimizer magic                                   | --optimizer, --lr: 
--lr -1                                             | -1
--lr-schedule random                                | --lr-schedule=random: want one of
--schedule random                                   | want one of naive, gpipe,
--clip -1                                           | --clip is -1

--data 3                                            | --batch: a batch of 8 sequences for 3 data-parallel devices
--data 4 --accumulate 4                             | 4 data-parallel devices, with 4 micro-batches each
--data 0                                            | --data=0: want at least 1
--tensor 2 --data 256                               | multiply to 512 devices: want at most 256
--pipe 999999 --microbatches 999999                 | multiply to 999999 devices
--seq-parallel 999999                               | multiply to 999999 devices
--seq-parallel 9                                    | --seq-parallel=9: a sequence has --seq 8 tokens
--sync sometimes                                    | "sometimes" for "--sync" flag: want one of naive, overlap
--sync spmd --data 2 --accumulate 2                 | --accumulate and --sync=spmd, which is one program
--sync spmd --data 2 --zero 1 --offload-optimizer   | --offload-optimizer and --sync=spmd, which is one program and
--sync spmd --data 2 --zero 3 --link 1e9            | --link: not available for one program on all devices
--sync auto --data 2 --zero 3 --accumulate 2        | --accumulate and --sync=auto, which leaves communication
--sync auto --tensor 2 --tensor-sequence            | --tensor-sequence and --sync=auto
--sync auto --seq-parallel 2                        | --seq-parallel and --sync=auto
--sync ps --data 2 --every 2                        | --every and --sync=ps, which has parameter servers
--sync PS --data 2 --clip 1                         | cannot clip them (--clip)
--sync ps --data 2 --servers 3                      | --servers is 3
--data 2 --servers 1                                | --servers=1 and --sync=bucket, which has no servers
--data 2 --every 2 --sync naive                     | --every is 2 and --sync "naive"
--data 2 --every 2 --precision fp16                 | in local SGD --precision would scale losses
--data 2 --bucket-bytes 0                           | want bytes, at least 1
--data 2 --bucket-bytes 9e9 --sync naive            | --bucket-bytes is 9000000000 and --sync "naive"
--data 2 --compress-gradients zip                   | --compress-gradients: 
--data 2 --compress-gradients bf16 --precision fp16 | accumulated in float32
--tensor 2 --compress-gradients bf16                | --compress-gradients and --every are for what goes between
--data 2 --zero 4                                   | --zero is 4: choose a stage
--data 2 --zero 2 --prefetch 1                      | --prefetch is 1 in stage 2
--data 2 --zero 3 --every 2                         | local SGD (--every) averages states
--data 2 --zero 3 --sync Overlap                    | leave --sync and --bucket-bytes out
--data 4 --zero 3 --shards 3                        | --shards=3: want a divisor of --data=4
--replicas 3 --data 1 --shards 2 --zero 1           | --shards is 2
--prefetch 1                                        | --prefetch=1 changes nothing without --zero
--tensor 2 --tensor-overlap                         | --tensor-overlap=true changes nothing without --tensor-sequence
--tensor 1 --tensor-sequence                        | --tensor-sequence=true changes nothing without --tensor
--tensor 2 --seq-ulysses 2                          | --seq-ulysses=2 changes nothing without --seq-parallel
--tensor 2 --offload-optimizer                      | --offload-optimizer: updates on the host need one device
--tensor 2 --data 2 --link 1e9                      | there is one rank, of 4 devices
--tensor 2 --tensor-sequence --tensor-partition     | --tensor-partition is set
  --layers 2 --tensor 2 --pipe 2 --device-memory 10kB | a device of stage 1 needs
--tensor 3                                          | --tensor=3: tensor: parameter h0.qkv.w
--tensor 3 --sync auto                              | --tensor=3: tensor: parameter h0.qkv.w
--tensor 4 --tensor-sequence --seq 10               | --seq is 10, of which a device has 10 tokens
--seq-parallel 2 --dropout 0.1                      | --dropout is 0.1 with sequence parallelism
--seq-parallel 3 --seq-method ulysses               | which 3 devices cannot exchange evenly for tokens
--seq-parallel 2 --seq-method flash                 | want one of ring, ulysses, allgather, hybrid
--seq-parallel 2 --seq-method hybrid                | choose other numbers, or --seq-method ring
--seq-parallel 4 --seq-ulysses 2                    | --seq-ulysses is 2 with --seq-method ring
--seq-parallel 2 --placement spiral                 | "spiral" for "--placement" flag: want one of
--seq-parallel 2 --seq-method ulysses --placement striped | --placement is "striped" without a ring: choose
--seq-parallel 2 --seq-ranks --seq-method allgather | rings only
--seq-parallel 4 --seq-ranks --seq-method hybrid    | with --seq-ulysses, the devices of a rank

--cut measured --data 2                             | --cut=measured changes nothing without --pipe
--pipe 2 --sync spmd                                | --pipe and --sync=spmd, which is one program
--pipe 2 --accumulate 2                             | --accumulate and --pipe=2, which has --microbatches
--pipe 2 --chunks 3                                 | takes no number of chunks
--pipe 2 --schedule interleaved                     | --pipe, --cut: 3 blocks cannot be 4 stages
--pipe 3 --schedule interleaved                     | --batch=8: the schedule interleaved takes no number
--pipe 4                                            | or more --layers
--pipe 2 --cut some                                 | --cut=some: want even, measured
--pipe 2 --cut 1,0,2                                | --cut=1,0,2: want
--pipe 2 --cut 3                                    | --pipe, --cut: the cut [3] has 1 stages
--pipe 2 --cut 9223372036854775807,4                | --cut=9223372036854775807,4: want
--pipe 2 --schedule pipedream --tied                | leave out --tied
--pipe 2 --schedule pipedream --clip 1              | --clip and --loss-scale need all gradients
--pipe 2 --schedule pipedream --warmup 2            | leave out --lr-schedule and --warmup
--schedule-file none/where                          | --schedule-file: open none/where
--schedule-file SHORT                               | --schedule-file: SHORT
--schedule-file STUCK                               | --schedule-file: STUCK
--schedule-file FILE --pipe 3                       | is a schedule of 2 ranks
--schedule-file FILE --chunks 2                     | are part of the schedule
`

func TestTrainRefuses(t *testing.T) {
	dir := t.TempDir()
	files := []string{}
	for name, text := range map[string]string{"EMPTY": "", "SHORT": "short", "USED": `{"step":1}`,
		"FILE":  "schedule mine\nrank 0: 0F0 0B0 0U0\nrank 1: 1F0 1B0 1U0\n",
		"STUCK": "schedule stuck\nrank 0: 0B0 0F0 0U0\n"} {
		path := filepath.Join(dir, strings.ToLower(name))
		files = append(files, name, path)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv(xla.EnvDevices, "") // as it was, once this is over
	for line := range strings.Lines(strings.NewReplacer(files...).Replace(refused)) {
		flags, want, ok := strings.Cut(strings.TrimSuffix(line, "\n"), "| ")
		if !ok {
			continue
		}
		args := slices.Concat(small, []string{"--steps", "1", "--batch", "8"}, strings.Fields(flags))
		if strings.Contains(flags, "--reference") {
			args = append([]string{"train"}, strings.Fields(flags)...)
		}
		out, err := ran(t, args...)
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n") || out != "" {
			t.Errorf("%s: printed %q, error %v, want %q in one sentence", flags, out, err, want)
		}
	}
}
