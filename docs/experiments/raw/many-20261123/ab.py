#!/usr/bin/env python3
"""IDLE=0 ab.py CONNS ROUNDS SECONDS PATH name=cmd... : servers in turns (cmd: a binary and a configuration, or a command line with PORT), CPU us per request"""
import subprocess,sys,time,os,re,statistics as st
conns,rounds,secs,path=int(sys.argv[1]),int(sys.argv[2]),int(sys.argv[3]),sys.argv[4]
servers=[]
holders=[]
def ticks(pid):
    t=0
    for d in [pid]+children(pid):
        f=open(f'/proc/{d}/stat').read().rsplit(')',1)[1].split(); t+=int(f[11])+int(f[12])
    return t
def ns(pid):
    # schedstat: exact run time of all threads
    t=0
    for d in [pid]+children(pid):
        for th in os.listdir(f'/proc/{d}/task'):
            t+=int(open(f'/proc/{d}/task/{th}/schedstat').read().split()[0])
    return t
def children(pid):
    out=[]
    for th in os.listdir(f'/proc/{pid}/task'):
        for c in open(f'/proc/{pid}/task/{th}/children').read().split():
            out.append(int(c)); out+=children(int(c))
    return out
port=8210
try:
    for a in sys.argv[5:]:
        name,cmd=a.split('=',1)
        port+=1
        if 'PORT' in cmd:
            p=subprocess.Popen(['taskset','-c','0']+cmd.replace('PORT',str(port)).split())
            servers.append((name,p,port,[]))
            continue
        exe,conf=cmd.split()[:2]
        env=dict(os.environ)
        for kv in cmd.split()[2:]:
            k,v=kv.split(':'); env[k]=v
        text=open(conf).read().replace('8299',str(port)).replace('lead.pid',f'{name}.pid').replace('ng.pid',f'{name}.pid')
        cf=os.path.abspath(f'ab-{name}.conf'); open(cf,'w').write(text)
        p=subprocess.Popen(['taskset','-c','0',exe,'-c',cf],env=env)
        servers.append((name,p,port,[]))
    time.sleep(1.5)
    # IDLE connections to each server, of which each has had one answer, held by a process of their own
    import socket,signal
    count=int(os.environ.get('IDLE','0'))
    for _,_,port,_ in servers if count else []:
        ready,said=os.pipe()
        pid=os.fork()
        if pid==0:
            idle=[]
            for i in range(count):
                c=socket.create_connection(('127.0.0.1',port)); c.sendall(b'GET / HTTP/1.1\r\nHost: a\r\n\r\n')
                assert c.recv(4096).startswith(b'HTTP/1.1 200'); idle.append(c)
            os.write(said,b'.'); signal.pause()
        holders.append(pid); os.close(said); print('idle' if os.read(ready,1) else 'idle failed',count,file=sys.stderr)
    for r in range(rounds+1):
        for name,p,port,res in servers:
            t0=ns(p.pid)
            o=subprocess.run(['taskset','-c','1','wrk','-t1',f'-c{conns}',f'-d{secs}s',f'http://127.0.0.1:{port}{path}'],capture_output=True,text=True).stdout
            t1=ns(p.pid)
            n=int(re.search(r'(\d+) requests in',o).group(1))
            bad='Non-2xx' in o or 'Socket errors' in o
            if r: res.append((t1-t0)/n/1000)
            if bad: print(name,o)
    base=None
    for name,p,port,res in servers:
        m=st.median(res); base=base or m
        print(f'{name:12} {m:7.2f} us  {m/base:5.3f}   {min(res):.2f}-{max(res):.2f}')
finally:
    for pid in holders: os.kill(pid,15)
    for name,p,_,_ in servers: p.terminate()
