package main

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/shardbook/shardbook/internal/must"
	"github.com/shardbook/shardbook/lib/xla"
)

// refused lists, for each command, flags and what their error says: a line for each check of the command and of the
// libraries. Words in capitals are files.
var refused = map[string]string{"train": `
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
`, "estimate": `
| no model is given | --model | --params
surplus | surplus
--params 0 | --params=0
--params 1.5 | --params=1.5 | whole number
--params 9e18 | 9000000000000000000 | int64
--params 1e9 --batch 2 | --batch has no effect with --params
--params 1e9 --tensor 2 | --tensor has no effect with --params
--params 1e9 --activation relu | --activation has no effect with --params
--params 1e9 --optimizer adafactor | shapes | give a model
--params 1e9 --recompute auto --memory 1GB | --recompute has no effect with --params
--params 1e9 --model GPT-2 | --model and --params
--params 1e9 --gated | --params and --gated
--model GPT-2 --norm layernorm | --model and --norm
--model Llama-9 | --model | Llama-9 | nearest | --list-models
--config DIR/nothing | --config | nothing
--config DIR/. | --config | is a folder
--config MOE | --config | dbrx
--layers 2 | --layers | --d is 0
--layers 2 --d 64 --heads 5 --seq 8 --vocab 9 | --heads is 5 | such as 4
--layers 1 --d 60 --heads 6 --kv-heads 3 --seq 8 --vocab 16 --tensor 2 | Tensor is 2 | 3 key and value heads
--model GPT-2 --data 0 | --data=0
--model GPT-2 --batch -1 | --batch=-1
--model GPT-2 --tensor 7 | Parallelism.Tensor is 7
--model GPT-2 --zero 4 | ZeRO is 4
--model GPT-2 --schedule random | Schedule | random
--model GPT-2 --seq 9999 | Seq is 9999
--model GPT-2 --dropout NaN | Dropout is NaN
--model GPT-2 --clip NaN | --clip=NaN
--model GPT-2 --precision fp7 | --precision | fp7
--model GPT-2 --optimizer magic | --optimizer | magic
--model GPT-2 --recompute half | Recompute | half
--model GPT-2 --recompute auto | --recompute=auto | --device or --memory
--model GPT-2 --recompute auto --memory 1GB --tensor 5 | Tensor is 5
--model GPT-2 --engine steam | --engine=steam
--model GPT-2 --engine compiled --tensor 2 | Method
--model GPT-2 --bucket 0 | --bucket=0
--model GPT-2 --overhead much | --overhead=much
--model GPT-2 --memory 80XB | --memory=80XB
--model GPT-2 --memory 80GB --device B200 | --device and --memory
--model GPT-2 --device abacus | --device | abacus | nearest
--model GPT-2 --activation tanh | --activation=tanh | relu
--model GPT-2 --tokens some | --tokens=some
--model GPT-2 --units MB | --units=MB
--model GPT-2 --data 2147483648 --context 1024 --seq 1024 --pipe 12 --tensor 12 | devices | smaller numbers
--model llama-3-8b --batch 2147483647 --seq 268435456 | int64
--file DIR/nothing | --file | nothing
--file EMPTY | no model is given
--file TYPO | --file | typo | "layer"
--file TYPE | --file | type:1 | layers is "two": want a whole number
--file LIST | --file | list:1 | params has no single value
--file TWO | --file | two
--file PLAIN | plain:1: --params=1.5
--file LONG | --file | long | bytes
`, "schedule": `
--kind nope | --kind=nope: want one of naive, gpipe,
--stages 0 | 0 ranks
--microbatches -1 | -1 micro-batches
--stages 9999999 --microbatches 9999999 | 9999999
--kind zb-v --chunks 3 | chunks
--kind interleaved --stages 4 --microbatches 6 | 6
--kind dualpipe --stages 3 | 3
--kind 1f1b --memory 3 | --memory is only for --kind search
--kind search --memory -3 | --memory=-3
--kind search --memory NaN | --memory=NaN
--kind search --memory 0.5 | takes 1
--kind search --chunks -1 | --chunks=-1
--devices 4 | --stages
--cost F | "F" is an unknown cost
--cost X=1 | "X=1" is an unknown cost
--cost F=1,F=2 | F is given twice
--cost F= | F=: want numbers
--cost F=-1 | F=-1: want numbers
--cost F=NaN | want numbers
--cost F=1e999 | want numbers
--cost F=1:2:3 | a list has 3 values for 4 stages
--cost K=2 | Kept
--cost link=1:2 | link has 2 values
--csv - --json | --csv - and --json
--read x --kind gpipe | --kind and --read
--read /nonexistent/file | --read: open /nonexistent/file
--read - | --read: -: 
--trace /nonexistent/file | --trace: open /nonexistent/file
--csv= | --csv is empty
more | more
`, "launch": `
| --checkpoint DIR
--checkpoint X --data 4 | unknown flag: --data
--checkpoint X more | "more" | after --
--checkpoint X more -- --data 4 | "more" | after --
--checkpoint X -- more | "more" | shardbook train --help
--checkpoint X -- --steps none | after -- | --steps
--checkpoint X -- --no-such | after -- | --no-such
--checkpoint X -- --help | shardbook train --help
--checkpoint X -- --checkpoint Y | --checkpoint is a flag of launch
--checkpoint X -- --engine local | --engine=local | leave it out
--checkpoint X --host a --hostfile HOSTS | --hostfile and --host
--checkpoint X --host a --slots 2 | --slots=2 | a:2
--checkpoint X --slots 0 | --slots=0
--checkpoint X --host a:none | --host=a:none | "none"
--checkpoint X --hostfile HOSTS | --hostfile: HOSTS | line 2 | "b"
--checkpoint X --hostfile /no/such/file | --hostfile | /no/such/file
--checkpoint X --interface= | --interface is empty
--checkpoint X --slots 1 --discover /no/such/script | --slots=1
--checkpoint X --discover /no/such/script | --discover | /no/such/script
--checkpoint X --min-hosts 0 | --min-hosts=0
--checkpoint X --restarts -1 | --restarts=-1
--checkpoint X --probe 0s | --probe=0s: want more than 0s
--checkpoint X --grace -1s | --grace=-1s
--checkpoint X --slots 2 -- --zero 5 | localhost:2 | --zero is 5
--checkpoint X --slots 2 -- --data 4 | --data=4 needs 4 ranks | slots for 2
--checkpoint X --slots 2 -- --pipe 4 | needs 4 ranks | --pipe | slots for 2
`, "": `
doctor --devices 0 | --devices=0 | 1 to
doctor --devices -1 | --devices=-1
doctor --devices many | many
doctor --cache EMPTY | EMPTY | is a file
doctor --cache EMPTY/below | EMPTY | not a directory | SHARDBOOK_CACHE
doctor --cache= | --cache | empty
doctor --plugin= | --plugin | empty
notebooks 99-nothing | 99-nothing | 00-devices
notebooks 00-devices --set devises=4 | devises | devices
notebooks 00-devices --set devices | devices | NAME=VALUE
notebooks --timeout -5s | --timeout=-5s
notebooks --update --out x | update | out
nonsense | nonsense
lab --port 70000 | 70000
`}

// Whatever is wrong is one sentence that says what, and nothing is printed or done.
func TestRefuses(t *testing.T) {
	dir := t.TempDir()
	names := []string{"DIR/", dir + "/"}
	for name, text := range map[string]string{"EMPTY": "", "SHORT": "short", "USED": `{"step":1}`,
		"FILE":  "schedule mine\nrank 0: 0F0 0B0 0U0\nrank 1: 1F0 1B0 1U0\n",
		"STUCK": "schedule stuck\nrank 0: 0B0 0F0 0U0\n", "HOSTS": "a slots=2\nb slots=none\n",
		"MOE": `{"model_type": "dbrx"}`, "TYPO": `{"layer": 2}`, "TYPE": `{"layers": "two"}`,
		"LIST": `{"params": [1]}`, "TWO": `{"params": 1} {}`, "PLAIN": `{"params": 1.5}`,
		"LONG": strings.Repeat(" ", 1<<20) + "{}"} {
		path := filepath.Join(dir, strings.ToLower(name))
		names = append(names, name, path)
		writeFile(t, path, text)
	}
	names = append(names, "checkpoint X", "checkpoint "+filepath.Join(dir, "run"))
	t.Setenv(xla.EnvDevices, "") // as it was, once this is over
	for _, setting := range standIn(t, "echo mpirun must not be started; exit 3\n") {
		name, value, _ := strings.Cut(setting, "=")
		t.Setenv(name, value)
	}
	for command, table := range refused {
		for line := range strings.Lines(strings.NewReplacer(names...).Replace(table)) {
			flags, rest, ok := strings.Cut(strings.TrimSuffix(line, "\n"), "| ")
			if !ok {
				continue
			}
			args := append(strings.Fields(command), strings.Fields(flags)...)
			if command == "train" && !strings.Contains(flags, "--reference") {
				args = slices.Concat(small, []string{"--steps", "1", "--batch", "8"}, strings.Fields(flags))
			}
			out, err := ran(t, args...)
			for want := range strings.SplitSeq(rest, " | ") {
				if err == nil || out != "" || !strings.Contains(err.Error(), want) ||
					strings.Contains(err.Error(), "\n") {
					t.Errorf("%s %s: printed %q, error %v, want %q in one sentence", command, flags, out, err, want)
				}
			}
		}
	}
	if os.Geteuid() == 0 {
		t.Setenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "")
		if _, err := ran(t, "launch", "--checkpoint", dir); err == nil ||
			!strings.Contains(err.Error(), "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1") {
			t.Errorf("as root: %v, want what to set", err)
		}
	}
}

// A flag that names a file refuses what is none, or too large, with one sentence, and does not wait. Package userfile
// has more kinds of special files.
func TestSpecialFiles(t *testing.T) {
	dir := t.TempDir()
	pipe, sparse, folder := filepath.Join(dir, "pipe"), filepath.Join(dir, "sparse"), filepath.Join(dir, "folder")
	must.Do(t, errors.Join(syscall.Mkfifo(pipe, 0o644), os.Mkdir(folder, 0o755), os.WriteFile(sparse, nil, 0o644),
		os.Truncate(sparse, 100e9)))
	train := strings.Join(small, " ") + " --data 2 "
	const special, full, none = "give a regular file", "100000000000 bytes", "not a directory"
	for line, want := range map[string][]string{ // for a folder, a pipe, a large file and a device; "" is no error
		train + "--text":          {"is empty", special, full, special},
		train + "--schedule-file": {special, special, full, special},
		train + "--trace":         {special, special, full, special},
		train + "--checkpoint":    {"", none, none, none},
		"estimate --file":         {special, special, full, special},
		"estimate --config":       {special, special, full, special},
		"schedule --read":         {special, special, full, special},
		"schedule --csv":          {special, special, full, special},
		"schedule --trace":        {special, special, full, special},
		"schedule --chart":        {special, special, full, special},
		"log":                     {special, "nobody reads", "the file is not empty", ""},
		"hostfile":                {special, special, full, special},
	} {
		for i, path := range []string{folder, pipe, sparse, "/dev/zero"} {
			if want[i] == "" {
				continue
			}
			var err error
			switch line {
			case "log":
				_, err = openLog(path, 0)
			case "hostfile":
				_, err = readHostfile("--hostfile", path)
			default:
				_, err = ran(t, append(strings.Fields(line), path)...)
			}
			if err == nil || !strings.Contains(err.Error(), want[i]) || !strings.Contains(err.Error(), path) ||
				strings.Contains(err.Error(), "\n") {
				t.Errorf("%s %s: error %v, want one sentence with %q", line, path, err, want[i])
			}
		}
	}
	if info, err := os.Stat(sparse); err != nil || info.Size() != 100e9 {
		t.Errorf("a file that was refused was changed: %v", err)
	}
}

// What cannot be written is an error, and no run without its results.
func TestFullDevice(t *testing.T) {
	log := must.Get(openLog("/dev/full", 0))(t)
	defer log.Close()
	full := must.Get(os.OpenFile("/dev/full", os.O_WRONLY, 0))(t)
	defer full.Close()
	printed := func(line ...string) error {
		cmd := newCommand()
		cmd.SetArgs(line)
		cmd.SetOut(full)
		return cmd.Execute()
	}
	sizes := []string{"estimate", "--layers", "1", "--d", "8", "--heads", "1", "--vocab", "9", "--seq", "8"}
	for name, err := range map[string]error{
		"train --log":            writeLog(log, stepRecord{Step: 1}),
		"estimate":               printed(sizes...),
		"estimate --json":        printed(append(slices.Clone(sizes), "--json")...),
		"estimate --list-models": printed("estimate", "--list-models"),
		"schedule":               printed("schedule"),
		"schedule --json":        printed("schedule", "--json"),
		"schedule --csv -":       printed("schedule", "--csv", "-"),
	} {
		if !errors.Is(err, syscall.ENOSPC) {
			t.Errorf("%s: error %v", name, err)
		}
	}
	p := begin(t, func(cmd *exec.Cmd) { cmd.Stdout = full }, slices.Concat([]string{os.Args[0]}, small,
		[]string{"--steps", "1"})...)
	if status := p.status(); status != 1 || !strings.Contains(p.output(), "no space left on device") {
		t.Errorf("train: status %d, %s", status, p.output())
	}
}
