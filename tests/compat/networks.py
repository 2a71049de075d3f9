"""The authors' networks as they write them: their axis order, their names, `.view` on what layers give.

Each takes a namespace of layers `vn`: the library's compat layers, or the plain transcription. `VNOccNet` is NDF's.
"""

import torch
from torch import nn
from torch.nn import functional as F

W64, W128, W256, W512, W1024, W2048 = (width // 3 for width in (64, 128, 256, 512, 1024, 2048))


def pool_of(vn, pooling, channels):
    return vn.VNMaxPool(channels) if pooling == "max" else vn.mean_pool


class STNkd(nn.Module):
    def __init__(self, vn, pooling, d):
        super().__init__()
        self.conv1 = vn.VNLinearLeakyReLU(d, W64, dim=4, negative_slope=0.0)
        self.conv2 = vn.VNLinearLeakyReLU(W64, W128, dim=4, negative_slope=0.0)
        self.conv3 = vn.VNLinearLeakyReLU(W128, W1024, dim=4, negative_slope=0.0)
        self.fc1 = vn.VNLinearLeakyReLU(W1024, W512, dim=3, negative_slope=0.0)
        self.fc2 = vn.VNLinearLeakyReLU(W512, W256, dim=3, negative_slope=0.0)
        self.fc3 = vn.VNLinear(W256, d)
        self.pool = pool_of(vn, pooling, W1024)

    def forward(self, x):
        x = self.pool(self.conv3(self.conv2(self.conv1(x))))
        return self.fc3(self.fc2(self.fc1(x)))


class PointNetEncoder(nn.Module):
    def __init__(self, vn, pooling, n_knn):
        super().__init__()
        self.vn, self.n_knn = vn, n_knn
        self.conv_pos = vn.VNLinearLeakyReLU(3, W64, dim=5, negative_slope=0.0)
        self.conv1 = vn.VNLinearLeakyReLU(W64, W64, dim=4, negative_slope=0.0)
        self.conv2 = vn.VNLinearLeakyReLU(W64 * 2, W128, dim=4, negative_slope=0.0)
        self.conv3 = vn.VNLinear(W128, W1024)
        self.bn3 = vn.VNBatchNorm(W1024, dim=4)
        self.std_feature = vn.VNStdFeature(W1024 * 2, dim=4, normalize_frame=False, negative_slope=0.0)
        self.pool = pool_of(vn, pooling, W64)
        self.fstn = STNkd(vn, pooling, d=W64)

    def forward(self, x):
        B, _, N = x.size()
        x = x.view(B, 1, 3, N)
        x = self.pool(self.conv_pos(self.vn.get_graph_feature_cross(x, k=self.n_knn)))
        x = self.conv1(x)
        everywhere = self.fstn(x).view(B, -1, 3, 1).repeat(1, 1, 1, N)
        x = self.bn3(self.conv3(self.conv2(torch.cat((x, everywhere), 1))))
        mean = x.mean(dim=-1, keepdim=True).expand(x.size())
        x, trans = self.std_feature(torch.cat((x, mean), 1))
        return torch.max(x.view(B, -1, N), -1, keepdim=False)[0], trans


class VNPointNetCls(nn.Module):
    def __init__(self, vn, pooling, num_class=40, n_knn=20):
        super().__init__()
        self.feat = PointNetEncoder(vn, pooling, n_knn)
        self.fc1, self.fc2, self.fc3 = nn.Linear(W1024 * 6, 512), nn.Linear(512, 256), nn.Linear(256, num_class)
        self.bn1, self.bn2 = nn.BatchNorm1d(512), nn.BatchNorm1d(256)

    def forward(self, x):
        x, _ = self.feat(x)
        x = F.relu(self.bn1(self.fc1(x)))
        x = F.relu(self.bn2(self.fc2(x)))
        return F.log_softmax(self.fc3(x), dim=1)


class VNPointNetPartSeg(nn.Module):
    def __init__(self, vn, pooling, num_part=50, n_knn=20):
        super().__init__()
        self.vn, self.n_knn, self.num_part = vn, n_knn, num_part
        self.conv_pos = vn.VNLinearLeakyReLU(3, W64, dim=5, negative_slope=0.0)
        self.conv1 = vn.VNLinearLeakyReLU(W64, W64, dim=4, negative_slope=0.0)
        self.conv2 = vn.VNLinearLeakyReLU(W64, W128, dim=4, negative_slope=0.0)
        self.conv3 = vn.VNLinearLeakyReLU(W128, W128, dim=4, negative_slope=0.0)
        self.conv4 = vn.VNLinearLeakyReLU(W128 * 2, W512, dim=4, negative_slope=0.0)
        self.conv5 = vn.VNLinear(W512, W2048)
        self.bn5 = vn.VNBatchNorm(W2048, dim=4)
        self.std_feature = vn.VNStdFeature(W2048 * 2, dim=4, normalize_frame=False, negative_slope=0.0)
        self.pool = pool_of(vn, pooling, W64)
        self.fstn = STNkd(vn, pooling, d=W128)
        self.convs1, self.convs2 = nn.Conv1d(9025, 256, 1), nn.Conv1d(256, 256, 1)
        self.convs3, self.convs4 = nn.Conv1d(256, 128, 1), nn.Conv1d(128, num_part, 1)
        self.bns1, self.bns2, self.bns3 = nn.BatchNorm1d(256), nn.BatchNorm1d(256), nn.BatchNorm1d(128)

    def forward(self, x, label):
        B, _, N = x.size()
        x = self.vn.get_graph_feature_cross(x.unsqueeze(1), k=self.n_knn)
        x = self.pool(self.conv_pos(x))
        out1 = self.conv1(x)
        out2 = self.conv2(out1)
        out3 = self.conv3(out2)
        everywhere = self.fstn(out3).unsqueeze(-1).repeat(1, 1, 1, N)
        out4 = self.conv4(torch.cat((out3, everywhere), 1))
        out5 = self.bn5(self.conv5(out4))
        mean = out5.mean(dim=-1, keepdim=True).expand(out5.size())
        out5, trans = self.std_feature(torch.cat((out5, mean), 1))
        out5 = out5.view(B, -1, N)
        out_max = torch.cat([torch.max(out5, -1)[0], label.squeeze(1)], 1)
        expand = out_max.view(-1, W2048 * 6 + 16, 1).repeat(1, 1, N)
        out1234 = torch.cat((out1, out2, out3, out4), dim=1)
        out1234 = torch.einsum("bijm,bjkm->bikm", out1234, trans).view(B, -1, N)
        net = torch.cat([expand, out1234, out5], 1)
        for number in (1, 2, 3):
            net = F.relu(getattr(self, f"bns{number}")(getattr(self, f"convs{number}")(net)))
        net = self.convs4(net).transpose(2, 1).contiguous()
        return F.log_softmax(net.view(-1, self.num_part), dim=-1).view(B, N, self.num_part)


class VNDGCNNCls(nn.Module):
    def __init__(self, vn, pooling, num_class=40, n_knn=20):
        super().__init__()
        self.vn, self.n_knn = vn, n_knn
        self.conv1 = vn.VNLinearLeakyReLU(2, W64)
        self.conv2 = vn.VNLinearLeakyReLU(W64 * 2, W64)
        self.conv3 = vn.VNLinearLeakyReLU(W64 * 2, W128)
        self.conv4 = vn.VNLinearLeakyReLU(W128 * 2, W256)
        self.conv5 = vn.VNLinearLeakyReLU(W256 + W128 + W64 * 2, W1024, dim=4, share_nonlinearity=True)
        self.std_feature = vn.VNStdFeature(W1024 * 2, dim=4, normalize_frame=False)
        for number, width in enumerate((W64, W64, W128, W256), start=1):
            setattr(self, f"pool{number}", pool_of(vn, pooling, width))
        self.linear1, self.bn1 = nn.Linear(W1024 * 12, 512), nn.BatchNorm1d(512)
        self.linear2, self.bn2 = nn.Linear(512, 256), nn.BatchNorm1d(256)
        self.linear3 = nn.Linear(256, num_class)

    def forward(self, x):
        batch_size, _, num_points = x.size()
        x, levels = x.unsqueeze(1), []
        for number in (1, 2, 3, 4):
            x = self.vn.get_graph_feature(x.view(batch_size, -1, 3, num_points), k=self.n_knn)
            x = getattr(self, f"pool{number}")(getattr(self, f"conv{number}")(x))
            levels.append(x)
        x = self.conv5(torch.cat(levels, dim=1))
        mean = x.mean(dim=-1, keepdim=True).expand(x.size())
        x, _ = self.std_feature(torch.cat((x, mean), 1))
        x = x.view(batch_size, -1, num_points)
        x = [pool(x, 1).view(batch_size, -1) for pool in (F.adaptive_max_pool1d, F.adaptive_avg_pool1d)]
        x = F.leaky_relu(self.bn1(self.linear1(torch.cat(x, 1))), negative_slope=0.2)
        x = F.leaky_relu(self.bn2(self.linear2(x)), negative_slope=0.2)
        return self.linear3(x)


class VNDGCNNPartSeg(nn.Module):
    def __init__(self, vn, pooling, num_part=50, n_knn=20):
        super().__init__()
        self.vn, self.n_knn = vn, n_knn
        self.bn7, self.bn8 = nn.BatchNorm1d(64), nn.BatchNorm1d(256)
        self.bn9, self.bn10 = nn.BatchNorm1d(256), nn.BatchNorm1d(128)
        for number, channels in enumerate((2, W64, W64 * 2, W64, W64 * 2), start=1):
            setattr(self, f"conv{number}", vn.VNLinearLeakyReLU(channels, W64))
        for number in (1, 2, 3):
            setattr(self, f"pool{number}", pool_of(vn, pooling, W64))
        self.conv6 = vn.VNLinearLeakyReLU(W64 * 3, W1024, dim=4, share_nonlinearity=True)
        self.std_feature = vn.VNStdFeature(W1024 * 2, dim=4, normalize_frame=False)
        for number, channels, out in ((7, 16, 64), (8, 2299, 256), (9, 256, 256), (10, 256, 128)):
            layers = nn.Conv1d(channels, out, kernel_size=1, bias=False), getattr(self, f"bn{number}")
            setattr(self, f"conv{number}", nn.Sequential(*layers, nn.LeakyReLU(negative_slope=0.2)))
        self.conv11 = nn.Conv1d(128, num_part, kernel_size=1, bias=False)

    def forward(self, x, l):
        batch_size, _, num_points = x.size()
        x = self.vn.get_graph_feature(x.unsqueeze(1), k=self.n_knn)
        x1 = self.pool1(self.conv2(self.conv1(x)))
        x2 = self.pool2(self.conv4(self.conv3(self.vn.get_graph_feature(x1, k=self.n_knn))))
        x3 = self.pool3(self.conv5(self.vn.get_graph_feature(x2, k=self.n_knn)))
        x123 = torch.cat((x1, x2, x3), dim=1)
        x = self.conv6(x123)
        mean = x.mean(dim=-1, keepdim=True).expand(x.size())
        x, z0 = self.std_feature(torch.cat((x, mean), 1))
        x123 = torch.einsum("bijm,bjkm->bikm", x123, z0).view(batch_size, -1, num_points)
        x = x.view(batch_size, -1, num_points).max(dim=-1, keepdim=True)[0]
        l = self.conv7(l.view(batch_size, -1, 1))
        x = torch.cat((x, l), dim=1).repeat(1, 1, num_points)
        x = self.conv10(self.conv9(self.conv8(torch.cat((x, x123), dim=1))))
        return self.conv11(x)


class VNOccNet(nn.Module):
    """NDF's encoder of clouds [B, N, 3] and its decoder of queries [B, T, 3], one number for each."""

    def __init__(self, vn, latent=24, hidden=16, k=10):
        super().__init__()
        self.vn, self.k = vn, k
        self.conv_pos = vn.VNLinearLeakyReLU(3, 20, negative_slope=0.2, share_nonlinearity=False, use_batchnorm=False)
        self.fc_pos = vn.VNLinear(20, 2 * hidden)
        for number in range(3):
            setattr(self, f"block_{number}", vn.VNResnetBlockFC(2 * hidden, hidden))
        self.fc_c = vn.VNLinear(hidden, latent)
        self.actvn_c = vn.VNLeakyReLU(hidden, negative_slope=0.2, share_nonlinearity=False)
        self.std_feature = vn.VNStdFeature(latent, dim=3, normalize_frame=True, use_batchnorm=False)
        self.z_in = vn.VNLinear(latent, latent)
        self.fc_in = nn.Linear(2 * latent + 1, 1)

    def forward(self, p, queries):
        batch_size = p.size(0)
        p = p.unsqueeze(1).transpose(2, 3)
        net = self.conv_pos(self.vn.get_graph_feature_cross(p, k=self.k))
        net = self.fc_pos(self.vn.mean_pool(net, dim=-1))
        for number in range(3):
            net = getattr(self, f"block_{number}")(net)
            pooled = self.vn.mean_pool(net, dim=-1, keepdim=True).expand(net.size())
            net = torch.cat([net, pooled], dim=1) if number < 2 else net
        z = self.fc_c(self.actvn_c(self.vn.mean_pool(net, dim=-1)))
        read, _ = self.std_feature(z)
        z = z.view(batch_size, -1, 3)
        known = (z * self.z_in(z)).sum(-1).unsqueeze(1).repeat(1, queries.size(1), 1)
        along = torch.einsum("bmi,bni->bmn", queries, z)
        x = torch.cat([(queries * queries).sum(2, keepdim=True), along, known], dim=2)
        return self.fc_in(x).squeeze(-1) + read.view(batch_size, -1).sum(1, keepdim=True)
