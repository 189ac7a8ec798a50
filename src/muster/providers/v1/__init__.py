"""Run node providers written for Ray's v1 interface behind the port of the autoscaler."""
