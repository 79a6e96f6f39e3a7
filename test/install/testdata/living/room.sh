# What units are kept from, they are kept from; also when the agents' socket is a new one.
systemctl restart zmailer-agents.socket zmailer-agents.service zmailer-scheduler.service
systemctl start zmailer-web.service
await bash -c 'echo >/dev/tcp/127.0.0.1/2580'
echo secret >/tmp/of-the-machine
for service in smtpserver router scheduler agents web; do
	pid=$(pid_of $service)
	[ "$pid" != 0 ] || fail "$service does not run"
	inside() { nsenter --target $pid --mount --wd=/ "$@"; }
	asks() {
		inside setpriv --reuid zmailer --regid zmailer --clear-groups perl -MSocket -e \
			'socket(S, PF_UNIX, SOCK_SEQPACKET, 0); exit(connect(S, pack_sockaddr_un("/run/zmailer-agents/socket")) ? 0 : 1)'
	}
	# Even root could write nowhere else from there.
	for place in /etc /etc/zmailer /usr /boot /opt /var /var/lib /var/log /srv; do
		! inside touch $place/left-by-$service 2>/dev/null || fail "$service can write in $place"
	done
	inside touch $spool/touched && rm $spool/touched
	[ ! -e /tmp/left ] && ! inside test -e /tmp/of-the-machine || fail "$service sees /tmp"
	case $service in
	agents) for place in /home/alice /var/mail /root; do inside touch $place/touched && rm $place/touched; done ;;
	router)
		inside test -e /home/alice || fail "router cannot read .forward"
		! inside touch /home/alice/left 2>/dev/null || fail "router can write in /home"
		;;
	*) ! inside test -e /home/alice || fail "$service sees /home" ;;
	esac
	case $service in
	smtpserver | router | web) ! asks || fail "$service can ask for agents" ;;
	scheduler) asks || fail "the scheduler cannot ask for agents" ;;
	esac
	status=/proc/$pid/status
	grep -q '^NoNewPrivs:.1$' $status || fail "$service may gain rights"
	grep -q '^Seccomp:.2$' $status || fail "$service may call everything"
	echo "$service: uid $(awk '/^Uid:/ {print $2}' $status), may $(awk '/^CapEff:/ {print $2}' $status) of $(awk '/^CapBnd:/ {print $2}' $status)"
	[ $service = agents ] || [ "$(awk '/^Uid:/ {print $2}' $status)" = "$(id -u zmailer)" ] || fail "$service runs as another"
	case $service in
	# cap_dac_read_search is its helper's, which opens keys; it has given it up.
	scheduler | web) [ "$(awk '/^Cap(Eff|Bnd):/ {printf "%s ", $2}' $status)" = "0000000000000000 0000000000000004 " ] || fail "$service has rights" ;;
	esac
done
[ "$(nsenter --target "$(pid_of agents)" --net ip -o link | wc -l)" = 1 ] || fail "agents have a network"

# From within, as the programs themselves.
zmctl check --confinement >/tmp/attempts || fail "$(cat /tmp/attempts)"
tail -n 1 /tmp/attempts
systemctl stop zmailer-web.service
healthy
