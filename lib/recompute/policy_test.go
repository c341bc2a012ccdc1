package recompute_test

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/shardbook/shardbook/lib/recompute"
)

func TestPolicies(t *testing.T) {
	const all, allButDown = "norm1,qkv,scores,mix,mid,norm2,up,act,down", "norm1,qkv,scores,mix,mid,norm2,up,act"
	for _, test := range []struct {
		policy recompute.Policy
		blocks int
		want   recompute.Policy
	}{
		{recompute.None, 3, "plan:-*3"},
		{"none", 1, "plan:-"},
		{recompute.Block, 2, "plan:" + allButDown + "*2"},
		{recompute.SubLayers, 2, "plan:norm1,qkv,scores,mix,norm2,up,act*2"},
		{"halves", 1, "plan:norm1,qkv,scores,mix,norm2,up,act"}, // the name of SubLayers before v0.3
		{recompute.Selective, 4, "plan:scores*4"},
		{recompute.Every(1), 2, "plan:" + allButDown + "*2"},
		{recompute.Every(2), 5, "plan:" + all + ";" + allButDown + ";" + all + ";" + allButDown + "*2"},
		{recompute.Every(9), 2, "plan:" + all + ";" + allButDown},
		{recompute.Sqrt, 9, recompute.Policy("plan:" + strings.Repeat(all+"*2;"+allButDown+";", 2) + all + "*2;" +
			allButDown)},
		{recompute.Sqrt, 1, "plan:" + allButDown},
		{recompute.Recomputing(recompute.Act, recompute.Norm1, recompute.Act), 2, "plan:norm1,act*2"},
		{recompute.Recomputing(), 2, "plan:-*2"},
		{"plan:-;act,norm1*2;-;-", 5, "plan:-;norm1,act*2;-*2"},
	} {
		plan, err := test.policy.Plan(test.blocks)
		if err != nil || len(plan) != test.blocks || plan.Policy() != test.want {
			t.Errorf("%q for %d blocks: plan %q, error %v, want %q", test.policy, test.blocks, plan.Policy(), err,
				test.want)
		}
		if err := test.policy.Validate(); err != nil {
			t.Errorf("%q: %v", test.policy, err)
		}
	}
}

func TestPolicyErrors(t *testing.T) {
	for _, test := range []struct {
		policy recompute.Policy
		blocks int
		want   string
	}{
		{"blok", 2, `no policy "blok": choose none, block`},
		{"block:2", 2, `"block:2" takes no argument: write "block"`},
		{":", 2, `":" takes no argument`},
		{"every", 2, `"every": give a number of blocks`},
		{"every:0", 2, `"every:0": give`},
		{"every:99999999999999999999", 2, `"every:99999999999999999999": give`},
		{"ops:", 2, `no operation ""`},
		{"ops:act,gelu", 2, `no operation "gelu": choose from norm1, qkv,`},
		{"plan:act;-*0", 2, `"-*0" in a plan: write a number`},
		{"plan:act;-*2", 2, `a plan for 3 blocks, but the model has 2`},
		{"plan:-*9223372036854775807", 2, "more than 65536 blocks"},
		{"plan:-*40000;-*40000", 2, "more than 65536 blocks"},
		{"block", 0, "a plan for 0 blocks: choose 1 to 65536"},
		{"block", 1 << 40, "a plan for 1099511627776 blocks"},
	} {
		if _, err := test.policy.Plan(test.blocks); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%q for %d blocks: error %v, want %q", test.policy, test.blocks, err, test.want)
		}
	}
	for _, bad := range []recompute.Policy{"blok", "every:x", "ops:gelu", "plan:gelu", "plan:-*9999999"} {
		if bad.Validate() == nil {
			t.Errorf("%q is said to be valid", bad)
		}
	}
}

// randomPlan has about equally many blocks with few, some and all operations recomputed.
func randomPlan(random *rand.Rand, blocks int) recompute.Plan {
	plan := make(recompute.Plan, blocks)
	for i := range plan {
		of := random.Float64() * 1.2
		for _, op := range recompute.AllOps() {
			if random.Float64() < of {
				plan[i] |= recompute.SetOf(op)
			}
		}
	}
	return plan
}

// Any text is a plan with the right number of blocks, or an error.
func FuzzPolicy(f *testing.F) {
	for _, seed := range []string{"", "none", "block", "every:3", "sqrt", "ops:act,up", "plan:act;-*3", "plan:-*99999",
		"plan:*", "every:-1", "::"} {
		f.Add(seed, uint8(4))
	}
	f.Fuzz(func(t *testing.T, text string, blocks uint8) {
		plan, err := recompute.Policy(text).Plan(int(blocks))
		if err != nil {
			return
		}
		if len(plan) != int(blocks) {
			t.Fatalf("%q for %d blocks: a plan for %d", text, blocks, len(plan))
		}
		if again, err := plan.Policy().Plan(int(blocks)); err != nil || !slices.Equal(again, plan) {
			t.Errorf("%q is %v, which becomes %q, and that %v, error %v", text, plan, plan.Policy(), again, err)
		}
		if err := recompute.Policy(text).Validate(); err != nil {
			t.Errorf("%q has a plan for %d blocks, but %v", text, blocks, err)
		}
	})
}

func TestOps(t *testing.T) {
	all := recompute.AllOps()
	for i, op := range all {
		if again, err := recompute.ParseOp(op.String()); err != nil || again != op || int(op) != i {
			t.Errorf("operation %d is named %q, which is %d, error %v", i, op, again, err)
		}
	}
	if got := recompute.Op(200).String(); got != "op 200" {
		t.Errorf("no operation is named %q", got)
	}
	set := recompute.SetOf(recompute.Down, recompute.QKV)
	if !set.Has(recompute.QKV) || set.Has(recompute.Up) || set.Has(200) || set.Len() != 2 ||
		set.String() != "qkv,down" {
		t.Errorf("the set of down and qkv is %s, of %d", set, set.Len())
	}
	if full := recompute.SetOf(all...); full.Len() != len(all) {
		t.Errorf("the set of all operations has %d", full.Len())
	}
}
