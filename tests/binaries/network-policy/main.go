// Enforces NetworkPolicies on all pods whose traffic one network namespace forwards. The first packet of each connection is
// queued to this program, which asks Cyclonus what the policies say: the engine by which CNI plugins are tested.
package main

import (
	"encoding/binary"
	"errors"
	"flag"
	"log"
	"net/netip"
	"os/exec"
	"syscall"

	"github.com/mattfenwick/cyclonus/pkg/matcher"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
	core "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	networking "k8s.io/client-go/listers/networking/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"
)

// From linux/netfilter/nfnetlink_queue.h.
const (
	msgPacket, msgVerdict, msgConfig = 0, 1, 2

	attrPacketHeader, attrVerdictHeader, attrPayload = 1, 2, 10

	configCommand, configParameters = 1, 2

	drop, accept = 0, 1
)

func main() {
	kubeconfig := flag.String("kubeconfig", "", "path of a kubeconfig that may read pods, namespaces and policies")
	flag.Parse()
	config, err := clientcmd.BuildConfigFromFlags("", *kubeconfig)
	check(err)
	client, err := kubernetes.NewForConfig(config)
	check(err)
	factory := informers.NewSharedInformerFactory(client, 0)
	pods := factory.Core().V1().Pods().Informer()
	check(pods.AddIndexers(cache.Indexers{"ip": addresses}))
	cluster := cluster{
		pods:       pods.GetIndexer(),
		namespaces: factory.Core().V1().Namespaces().Lister(),
		policies:   factory.Networking().V1().NetworkPolicies().Lister(),
	}
	factory.Start(nil)
	factory.WaitForCacheSync(nil)

	socket, err := nl.Subscribe(unix.NETLINK_NETFILTER)
	check(err)
	// NFQNL_CFG_CMD_BIND, and NFQNL_COPY_PACKET of the headers.
	check(send(socket, msgConfig, configCommand, []byte{1, 0, 0, 0}))
	check(send(socket, msgConfig, configParameters, []byte{0, 0, 0, 128, 2}))
	rule := []string{"-w", "-t", "mangle", "-A", "FORWARD", "-m", "conntrack", "--ctstate", "NEW", "-j", "NFQUEUE"}
	check(exec.Command("iptables", rule...).Run())
	for {
		messages, _, err := socket.Receive()
		// More packets came than the socket holds; their senders try again.
		if errors.Is(err, unix.ENOBUFS) {
			continue
		}
		check(err)
		for _, message := range messages {
			if message.Header.Type == unix.NFNL_SUBSYS_QUEUE<<8|msgPacket {
				check(cluster.decide(socket, message))
			}
		}
	}
}

type cluster struct {
	pods       cache.Indexer
	namespaces corelisters.NamespaceLister
	policies   networking.NetworkPolicyLister
}

// decide tells the kernel what becomes of a queued packet.
func (c *cluster) decide(socket *nl.NetlinkSocket, message syscall.NetlinkMessage) error {
	attributes, err := nl.ParseRouteAttrAsMap(message.Data[nl.SizeofNfgenmsg:])
	if err != nil {
		return err
	}
	verdict := binary.BigEndian.AppendUint32(nil, drop)
	if c.allows(attributes[attrPayload].Value) {
		verdict = binary.BigEndian.AppendUint32(nil, accept)
	}
	id := attributes[attrPacketHeader].Value[:4]
	return send(socket, msgVerdict, attrVerdictHeader, append(verdict, id...))
}

// allows evaluates the policies for an IPv4 packet.
func (c *cluster) allows(packet []byte) bool {
	protocols := map[byte]core.Protocol{
		unix.IPPROTO_TCP: core.ProtocolTCP, unix.IPPROTO_UDP: core.ProtocolUDP, unix.IPPROTO_SCTP: core.ProtocolSCTP,
	}
	if len(packet) < 20 || len(packet) < int(packet[0]&15)*4+4 {
		return false
	}
	protocol, known := protocols[packet[9]]
	if !known {
		return true
	}
	port := int(binary.BigEndian.Uint16(packet[int(packet[0]&15)*4+2:]))
	source, _ := c.peer(packet[12:16])
	destination, pod := c.peer(packet[16:20])
	traffic := &matcher.Traffic{Source: source, Destination: destination, ResolvedPort: port, Protocol: protocol}
	if pod != nil {
		for _, container := range pod.Spec.Containers {
			for _, named := range container.Ports {
				if int(named.ContainerPort) == port && named.Protocol == protocol {
					traffic.ResolvedPortName = named.Name
				}
			}
		}
	}
	policies, err := c.policies.List(labels.Everything())
	check(err)
	allowed := matcher.BuildNetworkPolicies(true, policies).IsTrafficAllowed(traffic).IsAllowed()
	if !allowed {
		log.Printf("dropped %s from %s to %s, port %d", protocol, source.IP, destination.IP, port)
	}
	return allowed
}

// peer is whoever has an address, with the pod if it is one.
func (c *cluster) peer(address []byte) (*matcher.TrafficPeer, *core.Pod) {
	ip, _ := netip.AddrFromSlice(address)
	peer := &matcher.TrafficPeer{IP: ip.String()}
	found, err := c.pods.ByIndex("ip", peer.IP)
	check(err)
	if len(found) == 0 {
		return peer, nil
	}
	pod := found[0].(*core.Pod)
	peer.Internal = &matcher.InternalPeer{PodLabels: pod.Labels, Namespace: pod.Namespace}
	if namespace, err := c.namespaces.Get(pod.Namespace); err == nil {
		peer.Internal.NamespaceLabels = namespace.Labels
	}
	return peer, pod
}

// addresses of a pod of its own network that has not ended: those of others may be another's by now.
func addresses(object any) ([]string, error) {
	pod := object.(*core.Pod)
	if pod.Spec.HostNetwork || pod.Status.Phase == core.PodSucceeded || pod.Status.Phase == core.PodFailed {
		return nil, nil
	}
	return []string{pod.Status.PodIP}, nil
}

// send sends queue 0 a message with one attribute.
func send(socket *nl.NetlinkSocket, kind int, attribute int, value []byte) error {
	request := nl.NewNetlinkRequest(unix.NFNL_SUBSYS_QUEUE<<8|kind, 0)
	request.AddData(&nl.Nfgenmsg{NfgenFamily: unix.AF_UNSPEC})
	request.AddData(nl.NewRtAttr(attribute, value))
	return socket.Send(request)
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
