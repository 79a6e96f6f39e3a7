# By make install: the page has started it.
healthy
case $(property zmailer-router.service ExecStart) in
*/usr/local/libexec/zmailer/router*) ;;
*) fail "another router runs: $(property zmailer-router.service ExecStart)" ;;
esac
zmctl queue | grep ann@later.example || fail "what waited is gone"
send 'from the source' alice
once 'from the source' /var/mail/alice
zmctl stop
systemctl disable zmailer.target zmailer-agents.socket
