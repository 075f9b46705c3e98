# RandSlot as a service: search by words, OCR for scans, agents (/mcp), libraries on Qdrant; models if they are asked for.
#   docker build -t randslot .
#   export RANDSLOT_TOKEN=$(openssl rand -hex 16); echo "$RANDSLOT_TOKEN"
#   docker run -p 127.0.0.1:8000:8000 -e RANDSLOT_TOKEN -v randslot:/data randslot
# docs/serve.md says more. A test runs these steps as a script: keep its commands free of what a shell lacks.

FROM python:3.13-slim-trixie AS build
# What the image can do; with ",model" behind it, libraries with vectors too.
ARG EXTRAS=serve,ocr,mcp,qdrant
# For models: an index with builds of torch for the CPU, as PyTorch's install page names it. The default has CUDA.
ARG TORCH_INDEX=
WORKDIR /build
COPY constraints.txt container.lock ./
RUN python -m venv /opt/randslot \
    && if [ -n "$TORCH_INDEX" ]; then \
        /opt/randslot/bin/pip install --no-cache-dir --no-deps -c constraints.txt --index-url "$TORCH_INDEX" torch; \
    fi \
    && /opt/randslot/bin/pip install --no-cache-dir --require-hashes -r container.lock
COPY pyproject.toml README.md LICENSE LICENSES.md ./
COPY src src
# Everything that the usual extras need is there by now, by its hash; tools/lock.py writes the list.
RUN /opt/randslot/bin/pip install --no-cache-dir --no-build-isolation -c constraints.txt ".[$EXTRAS]"

FROM python:3.13-slim-trixie
COPY --from=build /opt/randslot /opt/randslot
# Everything that is written goes into the volume: libraries, uploads, models from the hub, temporary files.
RUN mkdir /data && chown 10001:10001 /data
ENV PATH=/opt/randslot/bin:$PATH \
    HOME=/data \
    XDG_DATA_HOME=/data \
    HF_HOME=/data/models \
    PYTHONUNBUFFERED=1
WORKDIR /data
USER 10001:10001
VOLUME /data
EXPOSE 8000
HEALTHCHECK --interval=30s --timeout=5s --start-period=30s \
    CMD ["python", "-c", "from urllib.request import ProxyHandler, build_opener; build_opener(ProxyHandler({})).open('http://127.0.0.1:8000/api/live', timeout=4)"]
ENTRYPOINT ["randslot"]
CMD ["serve", "--new", "--host", "0.0.0.0"]
