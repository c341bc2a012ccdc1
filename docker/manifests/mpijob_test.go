// Package manifests tests the files that start a training on clusters, with the clusters' own code where possible.
package manifests

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	kubeflow "github.com/kubeflow/mpi-operator/pkg/apis/kubeflow/v2beta1"
	"github.com/kubeflow/mpi-operator/pkg/apis/kubeflow/validation"
	core "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"
)

// check returns the errors of the MPI Operator's validation, and unknown fields.
func check(text []byte) error {
	var job kubeflow.MPIJob
	if err := yaml.UnmarshalStrict(text, &job); err != nil {
		return err
	}
	if job.APIVersion != kubeflow.SchemeGroupVersion.String() || job.Kind != kubeflow.Kind {
		return fmt.Errorf("it is a %s of %s", job.Kind, job.APIVersion)
	}
	kubeflow.SetDefaults_MPIJob(&job)
	errs := []error{validation.ValidateMPIJob(&job).ToAggregate()}
	for name, replica := range job.Spec.MPIReplicaSpecs {
		if name != kubeflow.MPIReplicaTypeLauncher && name != kubeflow.MPIReplicaTypeWorker {
			errs = append(errs, fmt.Errorf("there is no replica type %s", name))
		}
		pod := replica.Template.Spec
		for _, container := range pod.Containers {
			for _, mount := range container.VolumeMounts {
				if !slices.ContainsFunc(pod.Volumes, func(v core.Volume) bool { return v.Name == mount.Name }) {
					errs = append(errs, fmt.Errorf("%s: no volume %s", name, mount.Name))
				}
			}
		}
	}
	return errors.Join(errs...)
}

func TestMPIJob(t *testing.T) {
	text, err := os.ReadFile("../mpijob.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if err := check(text); err != nil {
		t.Error(err)
	}
	for _, test := range []struct{ from, to, want string }{
		{"slotsPerWorker:", "slotPerWorker:", "slotPerWorker"},
		{"slotsPerWorker: 2", "slotsPerWorker: -2", "slotsPerWorker"},
		{"slotsPerWorker: 2", "slotsPerWorker: two", "slotsPerWorker"},
		{"kubeflow.org/v2beta1", "kubeflow.org/v1", "kubeflow.org/v1"},
		{"kind: MPIJob", "kind: Job", "Job"},
		{"name: shardbook\n", "name: Shard_Book\n", "metadata.name"},
		{"Launcher:", "Starter:", "must have Launcher"},
		{"      replicas: 1", "      replicas: 2", "must be 1"},
		{"      replicas: 4", "      replicas: 0", "spec.mpiReplicaSpecs[Worker].replicas"},
		{"restartPolicy: OnFailure", "restartPolicy: Sometimes", "restartPolicy"},
		{"cleanPodPolicy: Running", "cleanPodPolicy: Some", "cleanPodPolicy"},
		{"mountPath:", "mount:", `"mount"`},
		{"memory: 8Gi", "memory: 8Gigs", "quantities"},
		{"            - name: runs\n", "            - name: walks\n", "no volume walks"},
		{"backoffLimit: 6", "backoffLimit: 6\n    backoffLimit: 7", "backoffLimit"},
	} {
		broken := strings.Replace(string(text), test.from, test.to, 1)
		if broken == string(text) {
			t.Fatalf("%q is not in the manifest", test.from)
		}
		if err := check([]byte(broken)); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%q: %v, want an error with %q", test.to, err, test.want)
		}
	}
}
