// Command crictl answers `crictl inspecti IMAGE`, the one thing that kind asks crictl: it prints the image's
// identity as JSON, or fails when containerd does not hold it. The real crictl is in no module that can be
// installed by name.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"
)

const containerdSocket = "unix:///run/containerd/containerd.sock"

func main() {
	if len(os.Args) != 3 || os.Args[1] != "inspecti" {
		fail("this stand-in knows only: crictl inspecti IMAGE")
	}
	connection, err := grpc.NewClient(containerdSocket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		fail(err.Error())
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	answer, err := runtime.NewImageServiceClient(connection).ImageStatus(
		ctx, &runtime.ImageStatusRequest{Image: &runtime.ImageSpec{Image: os.Args[2]}})
	if err != nil {
		fail(err.Error())
	}
	image := answer.GetImage()
	if image == nil {
		fail("no such image: " + os.Args[2])
	}
	err = json.NewEncoder(os.Stdout).Encode(map[string]any{"status": map[string]any{
		"id": image.GetId(), "repoTags": image.GetRepoTags(), "repoDigests": image.GetRepoDigests()}})
	if err != nil {
		fail(err.Error())
	}
}

func fail(reason string) {
	fmt.Fprintln(os.Stderr, "crictl: "+reason)
	os.Exit(1)
}
