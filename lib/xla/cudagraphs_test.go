package xla

import (
	"fmt"
	"testing"

	"github.com/gomlx/gomlx/core/graph"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoregistry"

	"github.com/shardbook/shardbook/internal/cache"
	"github.com/shardbook/shardbook/internal/must"
	"github.com/shardbook/shardbook/internal/plugin"
	"github.com/shardbook/shardbook/internal/systest"
)

// A program has the flags with which it was compiled. Those of one backend are not those of another.
func TestNoCUDAGraphs(t *testing.T) {
	if _, err := plugin.Find(string(plugin.CUDA), must.Get(cache.Dir(""))(t)); err != nil {
		systest.Skip(t, systest.Tier, err)
	}
	for _, without := range []bool{false, true, false} {
		options := []Option{CompileFor("h100"), Devices(1), Plugin(string(plugin.CUDA))}
		if without {
			options = append(options, NoCUDAGraphs())
		}
		b := must.Get(Open(options...))(t)
		defer b.Close()
		mesh := must.Get(b.Mesh(Axis("data", 1)))(t)
		p := must.Get(Compile(mesh, graph.Neg, In(Replicated()).Gives(Replicated())))(t)
		must.Do(t, p.Prepare([]float32{1}))
		commands := must.Get(latest(&p.compiled, func(e *executable) (string, error) {
			code, format, err := plugin.OptimizedProgram(e.backend.owner.plugin, executableHandle(e.Executable))
			if err != nil || format != "hlo_with_config" {
				return "", fmt.Errorf("it is %q: %w", format, err)
			}
			m := message{must.Get(protoregistry.GlobalTypes.FindMessageByName("xla.HloModuleProtoWithConfig"))(t).New()}
			must.Do(t, proto.Unmarshal(code, m.Interface()))
			flags := m.message("config").message("debug_options")
			return fmt.Sprint(flags.field("xla_gpu_enable_command_buffer").List().Len()), nil
		}))(t)
		if (commands == "0") != without {
			t.Errorf("without CUDA graphs: %t; kinds of commands in them: %s", without, commands)
		}
	}
}
