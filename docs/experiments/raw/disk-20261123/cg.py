#!/usr/bin/env python3
# User instructions (callgrind) and system calls (strace -c) for a warm request of 4 KiB: the difference of two runs.
import subprocess,sys,time,http.client,os,re,signal
W='OUT'
def conf(extra,path):
    open(path,'w').write('user root; master_process off; daemon off; pid %s/cg.pid; error_log %s/cg.err; worker_processes 1; events { use epoll; } http { access_log off; keepalive_requests 100000000; server { listen 127.0.0.1:19533; root %s/w4; %s } }'%(W,W,W,extra))
def load(n):
    cs=[http.client.HTTPConnection('127.0.0.1',19533) for _ in range(1)]
    for i in range(n):
        c=cs[0]; k=(i*7)%1000
        c.request('GET','/%d/%d'%(k%256,k//256)); assert len(c.getresponse().read())==4096
def wait():
    for _ in range(300):
        try: http.client.HTTPConnection('127.0.0.1',19533).connect(); return
        except OSError: time.sleep(.1)
def ir(b,extra,n):
    conf(extra,W+'/cg.conf'); p=subprocess.Popen(['valgrind','--tool=callgrind','--callgrind-out-file=/dev/null',b,'-c',W+'/cg.conf'],stderr=subprocess.PIPE,text=True)
    wait(); load(n); p.send_signal(signal.SIGINT); e=p.communicate(timeout=20)[1]
    return int(re.search(r'Collected : (\d+)',e).group(1))
def calls(b,extra,n):
    conf(extra,W+'/cg.conf'); p=subprocess.Popen(['strace','-f','-c','-o',W+'/cg.st',b,'-c',W+'/cg.conf'],stderr=subprocess.DEVNULL)
    wait(); load(n)
    os.kill(int(open(W+'/cg.pid').read()),signal.SIGTERM); p.wait(); d={}
    for l in open(W+'/cg.st'):
        f=l.split()
        if len(f)>=5 and f[3].isdigit(): d[f[-1]]=int(f[3])
    return d
subprocess.run('cat %s/w4/*/* > /dev/null'%W,shell=True)
for extra in ('','open_file_cache max=4000;'):
    for name in sys.argv[1:]:
        b=W+'/'+name
        a,c=ir(b,extra,500),ir(b,extra,2500)
        x,y=calls(b,extra,2000),calls(b,extra,6000)
        print(name,extra or 'default','instructions/request %.0f'%((c-a)/2000),'calls:',', '.join('%s %.2f'%(k,(y[k]-x.get(k,0))/4000) for k in sorted(y,key=lambda k:-y[k]) if abs(y[k]-x.get(k,0))>20),flush=True)
